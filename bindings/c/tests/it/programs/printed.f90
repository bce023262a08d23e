! A program that prints, and leaves it to Fortran when. usage: printed POOL [REGION]
program printed
    use outlive
    use checks
    use, intrinsic :: iso_fortran_env
    implicit none
    type(outlive_pool) :: pool
    type(outlive_job) :: job
    integer(int64), target :: step
    integer(int64) :: epoch
    integer :: status
    character(500) :: location, region

    call get_command_argument(1, location)
    call outlive_open(location, pool, status)
    call ok(status)
    call outlive_job_open(pool, "job", 0d0, job, status)
    call ok(status)
    step = 0
    call outlive_protect(job, "step", step, status)
    call ok(status)
    print "(a)", "begin"
    write (error_unit, "(a)") "error"
    if (command_argument_count() > 1) then
        call get_command_argument(2, region)
        call outlive_restore_some(job, 0_int64, [trim(region)], epoch, status)
    else
        call outlive_restore(job, 0_int64, epoch, status)
    end if
    if (status /= outlive_nothing) call ok(status)
    step = step + 1
    print "(a, i0)", "step ", step
    call outlive_save(job, outlive_force + outlive_until_committed, status)
    call ok(status)
    print "(a)", "uncovered"
    flush (output_unit)
    error stop 1
end program
