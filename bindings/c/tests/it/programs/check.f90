! Checks of the programs in Fortran, as check.h has them for C.
module checks
    use outlive
    implicit none

contains

    subroutine ok(status)
        integer, intent(in) :: status
        if (status /= outlive_ok) then
            print "(a)", outlive_error_text()
            error stop 1
        end if
    end subroutine

    subroutine refused(status, part)
        integer, intent(in) :: status
        character(*), intent(in) :: part
        character(:), allocatable :: text
        text = outlive_error_text()
        call check(status == outlive_invalid .and. index(text, part) > 0, part)
    end subroutine

    subroutine check(is, what)
        logical, intent(in) :: is
        character(*), intent(in) :: what
        if (.not. is) then
            print "(3a)", what, ": ", outlive_error_text()
            error stop 1
        end if
    end subroutine
end module
