! A program that prints, and leaves it to Fortran when. usage: printed POOL
program printed
    use outlive
    use, intrinsic :: iso_fortran_env
    implicit none
    type(outlive_pool) :: pool
    type(outlive_job) :: job
    integer(int64), target :: step
    integer(int64) :: epoch
    integer :: status
    character(500) :: location

    call get_command_argument(1, location)
    call outlive_open(location, pool, status)
    call check(status == outlive_ok)
    call outlive_job_open(pool, "job", 0d0, job, status)
    call check(status == outlive_ok)
    step = 0
    call outlive_protect(job, "step", step, status)
    call check(status == outlive_ok)
    print "(a)", "begin"
    write (error_unit, "(a)") "error"
    call outlive_restore(job, 0_int64, epoch, status)
    call check(status == outlive_ok .or. status == outlive_nothing)
    step = step + 1
    print "(a, i0)", "step ", step
    call outlive_save(job, outlive_force + outlive_until_committed, status)
    call check(status == outlive_ok)
    print "(a)", "uncovered"
    flush (output_unit)
    error stop 1

contains

    subroutine check(condition)
        logical, intent(in) :: condition
        if (.not. condition) error stop 1
    end subroutine
end program
