! A program with outputs behind a gate; the test kills it again and again.
! usage: gate POOL LINES RECEIVED PUBLISHED [LAST]
module receiver
    use outlive
    use, intrinsic :: iso_c_binding
    implicit none
    integer :: refusals = 0
    character(:), allocatable :: received

contains

    ! Appends "KEY OUTPUT" to a file; the test ignores keys that it knows.
    function receive(context, key, output, bytes) bind(c) result(status)
        type(c_ptr), value :: context, key, output
        integer(c_size_t), value :: bytes
        integer(c_int) :: status
        integer :: unit
        status = outlive_bug
        if (c_associated(context)) return
        status = outlive_retry
        refusals = refusals - 1
        if (refusals >= 0) return
        open (newunit=unit, file=received, position="append", action="write")
        write (unit, "(a)") outlive_text(key) // " " // outlive_text(output, bytes)
        close (unit)
        status = outlive_ok
    end function
end module

program gate
    use outlive
    use checks
    use receiver
    use, intrinsic :: iso_fortran_env
    implicit none
    integer(int64), parameter :: publish_every = 7
    type(outlive_pool) :: pool
    type(outlive_job) :: job
    real(real64), target :: u(4096) = 0
    integer(int64), target :: step = 0
    integer(int64) :: last, epoch, held
    integer :: status
    character(20) :: text
    character(:), allocatable :: lines, published

    lines = argument(2)
    received = argument(3)
    published = argument(4)
    last = huge(last)
    if (command_argument_count() > 4) then
        text = argument(5)
        read (text, *) last
    end if
    call outlive_open(argument(1), pool, status)
    call ok(status)
    call outlive_job_open(pool, "job", 0d0, job, status)
    call ok(status)
    call outlive_protect(job, "u", u, status)
    call ok(status)
    call outlive_protect(job, "step", step, status)
    call ok(status)
    call outlive_restore(job, 0_int64, epoch, status)
    if (status /= outlive_nothing) call ok(status)
    if (last < huge(last)) call bad_input()
    call outlive_gate_open(job, status, bytes_max=1048576_int64)
    call ok(status)
    call outlive_gate_sink(job, "receiver", receive, status)
    call ok(status)
    ! Opens the file: a run that appends nothing releases what the last one has left.
    call outlive_gate_append(job, lines, "", status)
    call ok(status)
    do while (step < last)
        call advance()
        call outlive_save(job, outlive_force, status)
        call ok(status)
    end do
    call outlive_save(job, outlive_force + outlive_until_committed, status)
    call ok(status)
    call outlive_gate_flush(job, huge(0d0), status)
    call ok(status)

    ! Outputs that no save covers, and one that its receiver puts off.
    call advance()
    call outlive_gate_held(job, held, status)
    call ok(status)
    call check(held >= 2, "two outputs are held")
    call outlive_gate_flush(job, 0d0, status)
    call refused(status, "no save covers")
    refusals = 1
    call outlive_save(job, outlive_force + outlive_until_committed, status)
    call ok(status)
    call outlive_gate_flush(job, 60d0, status)
    call ok(status)
    call outlive_gate_held(job, held, status)
    call check(status == outlive_ok .and. held == 0, "nothing is held")
    call outlive_job_close(job, status)
    call ok(status)
    call outlive_close(pool, status)
    call ok(status)
    print "(i0)", step

contains

    subroutine advance()
        integer :: unit
        step = step + 1
        u(1 + mod(step, 4096_int64)) = real(step, real64)
        write (text, "(i0)") step
        call outlive_gate_append(job, lines, trim(text) // " " // new_line("a"), status)
        call ok(status)
        call outlive_gate_give(job, "receiver", trim(text), status)
        call ok(status)
        if (mod(step, publish_every) /= 0) return
        open (newunit=unit, file=published // ".tmp", action="write")
        write (unit, "(i0)") step
        close (unit)
        call outlive_gate_publish(job, published // ".tmp", published, status)
        call ok(status)
    end subroutine

    subroutine bad_input()
        call outlive_gate_append(job, "x", "x", status)
        call refused(status, "call outlive_gate_open() first")
        call outlive_gate_held(job, held, status)
        call refused(status, "call outlive_gate_open() first")
        call outlive_gate_open(job, status)
        call ok(status)
        call outlive_gate_append(job, "/dev/null", "x", status)
        call refused(status, "no regular file")
        call outlive_gate_publish(job, "/no/such/file", "/no/such/other", status)
        call check(status == outlive_invalid, "no such file")
        call outlive_gate_sink(job, "publish", receive, status)
        call refused(status, "the gate's own")
        call outlive_gate_give(job, "file:/tmp/x", "x", status)
        call refused(status, "the gate's own")
    end subroutine

    function argument(at) result(text)
        integer, intent(in) :: at
        character(:), allocatable :: text
        integer :: length
        call get_command_argument(at, length=length)
        allocate (character(length) :: text)
        call get_command_argument(at, text)
    end function
end program
