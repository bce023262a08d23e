! Heat spreads over a plate. If you kill this program at any moment and start it again, it continues
! where it was. Its result is the same, bit for bit. heat.c is the same program in C.
!
!     make install PREFIX=$HOME/.local
!     gfortran -O2 $HOME/.local/include/outlive.F90 examples/heat.f90 -o heat \
!         -L$HOME/.local/lib -Wl,-rpath,$HOME/.local/lib -loutlive
!     ./heat ckpt 2000
program heat
    use outlive
    use, intrinsic :: iso_fortran_env
    implicit none
    integer, parameter :: rows = 1000, columns = 1000
    ! With a column of neighbours on either side: a column is contiguous in Fortran, as a row is in
    ! C.
    real(real64), allocatable, target :: now(:, :), next(:, :)
    integer(int64), target :: step
    type(outlive_pool) :: pool
    type(outlive_job) :: job
    integer(int64) :: epoch, last, dropped
    integer :: status
    character(200) :: location, steps

    location = "ckpt"
    steps = "1000"
    if (command_argument_count() > 0) call get_command_argument(1, location)
    if (command_argument_count() > 1) call get_command_argument(2, steps)
    read (steps, *) last
    allocate (now(rows, 0:columns + 1), next(rows, 0:columns + 1), source=0d0)
    step = 0

    call outlive_open(location, pool, status)
    call stop_if(status)
    call outlive_job_open(pool, "heat", 1d0, job, status)  ! saves at most once a second
    call stop_if(status)
    call outlive_protect(job, "plate", now(:, 1:columns), status)
    call stop_if(status)
    call outlive_protect(job, "step", step, status)
    call stop_if(status)
    call outlive_restore(job, 0_int64, epoch, status)
    if (status == outlive_nothing) then
        now(rows / 2, columns / 2) = 1d6  ! the program begins
    else
        call stop_if(status)
    end if
    print "(a, i0)", "heat: from step ", step

    do while (step < last)
        call advance()
        call outlive_save(job, outlive_if_due, status)  ! the program goes on while it is written
        call stop_if(status)
    end do
    call outlive_save(job, outlive_force, status)
    call stop_if(status)
    call outlive_prune(job, 10_int64, dropped, status)
    call stop_if(status)
    call outlive_job_close(job, status)
    call stop_if(status)
    call outlive_close(pool, status)
    call stop_if(status)
    print "(a, i0, a, es24.17)", "heat: step ", step, ", ", sum(now(:, 1:columns))

contains

    subroutine advance()
        integer :: row, column
        real(real64) :: above, below
        do column = 1, columns
            do row = 1, rows
                above = 0
                below = 0
                if (row > 1) above = now(row - 1, column)
                if (row < rows) below = now(row + 1, column)
                next(row, column) = now(row, column) + 0.2d0 * (above + below + now(row, column - 1) &
                    + now(row, column + 1) - 4 * now(row, column))
            end do
        end do
        ! Copied, and not swapped: protected memory must keep its address.
        now(:, 1:columns) = next(:, 1:columns)
        step = step + 1
    end subroutine

    subroutine stop_if(status)
        integer, intent(in) :: status
        if (status == outlive_ok) return
        write (error_unit, "(2a)") "heat: ", outlive_error_text()
        error stop 1
    end subroutine
end program
