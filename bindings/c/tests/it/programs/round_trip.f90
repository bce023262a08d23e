! All calls of a program in Fortran.
program round_trip
    use outlive
    use checks
    use, intrinsic :: iso_fortran_env
    implicit none
    type(outlive_pool) :: pool
    type(outlive_job) :: job
    type(outlive_events) :: events
    type(outlive_event) :: event
    type(outlive_saving) :: saving
    real(real64), allocatable, target :: grid(:, :), again(:, :)
    real(real32), target :: field(3, 4, 5)
    complex(real64), target :: wave(7)
    integer(int32), target :: step
    integer(int8), target :: bytes(10)
    logical, target :: flags(4)
    character(12), target :: label
    real(real64), target :: empty(0, 3)
    integer(int64), allocatable :: extents(:)
    character(200) :: location
    integer(int64) :: epoch, dropped
    integer :: status, at
    logical :: is

    call get_command_argument(1, location)
    allocate (grid(300, 200), again(300, 200))
    call outlive_open(location, pool, status)
    call ok(status)
    call outlive_job_open(pool, "fortran", 0d0, job, status)
    call ok(status)
    call outlive_restore(job, 0_int64, epoch, status)
    call refused(status, "first protect")
    call protect_all()
    call outlive_restore(job, 0_int64, epoch, status)
    call check(status == outlive_nothing .and. epoch == 0, "nothing yet")
    grid = reshape([(real(at, real64), at=1, 60000)], [300, 200])
    field = 2.5
    wave = (1d0, -2d0)
    step = 42
    bytes = 7_int8
    flags = [.true., .false., .true., .true.]
    label = "twelve chars"
    call outlive_next_label(job, "first", status)
    call ok(status)
    call outlive_next_tag(job, "fortran", status)
    call ok(status)
    call outlive_next_metric(job, "loss", 0.5d0, status)
    call ok(status)
    call outlive_save(job, outlive_if_due, status, saving)
    call ok(status)
    call outlive_wait(saving, status)
    call ok(status)
    call outlive_test(saving, is, status)
    call check(status == outlive_ok .and. is, "done")
    call outlive_save_epoch(saving, epoch, status)
    call check(status == outlive_ok .and. epoch == 1, "epoch")
    call outlive_save_free(saving, status)
    call ok(status)
    call outlive_tag(job, epoch, "later", .true., status)
    call ok(status)
    again = grid
    grid = 0
    field = 0
    wave = 0
    step = 0
    bytes = 0
    flags = .false.
    label = ""
    call outlive_restore(job, 0_int64, epoch, status)
    call ok(status)
    call check(epoch == 1 .and. all(abs(grid - again) <= 0) .and. all(abs(field - 2.5) <= 0), "arrays")
    call check(all(abs(wave - (1d0, -2d0)) <= 0) .and. step == 42 .and. all(bytes == 7), "values")
    call check(all(flags .eqv. [.true., .false., .true., .true.]) .and. label == "twelve chars", "texts")
    call outlive_region_shape(job, 0_int64, "field", extents, status)
    call check(status == outlive_ok .and. all(extents == [3, 4, 5]), "shape")
    call outlive_region_shape(job, 0_int64, "x", extents, status)
    call check(status == outlive_nothing, "no such region")
    step = 0
    call outlive_restore_some(job, 1_int64, ["step ", "label"], epoch, status)
    call check(status == outlive_ok .and. step == 42, "some")
    call outlive_save_some(job, ["step"], outlive_force + outlive_until_committed, status)
    call ok(status)
    call outlive_next_pin(job, status)
    call ok(status)
    call outlive_save(job, outlive_until_committed, status)
    call ok(status)
    call outlive_save(job, outlive_until_committed, status)
    call ok(status)
    call outlive_newest(job, epoch, status)
    call check(status == outlive_ok .and. epoch == 4, "newest")
    call outlive_prune(job, 1_int64, dropped, status)
    call check(status == outlive_ok .and. dropped == 1, "prune")

    call outlive_job_keep(job, "last 100", status)
    call ok(status)

    ! Each error has a text.
    call outlive_job_keep(job, "last", status)
    call refused(status, "is not a rule")
    call outlive_protect(job, "part", grid(1:300:2, :), status)
    call refused(status, "not contiguous")
    call outlive_protect_sharded(job, "part", grid, [300_int64], [0_int64, 0_int64], status)
    call refused(status, "dimensions")
    call outlive_protect_sharded(job, "grid", grid, [600_int64, 200_int64], [300_int64, 0_int64], status)
    call ok(status)
    call outlive_protect_sharded(job, "rows", grid, [600_int64, 200_int64], [1_int64, 0_int64], status, &
        block=[7_int64, 200_int64], stride=[14_int64, 200_int64])
    call ok(status)
    call outlive_protect_sharded(job, "part", grid, [600_int64, 200_int64], [1_int64, 0_int64], status, &
        block=[7_int64, 200_int64])
    call refused(status, "needs both")
    call outlive_protect_sharded(job, "part", grid, [600_int64, 200_int64], [1_int64, 0_int64], status, &
        block=[7_int64, 200_int64], stride=[14_int64])
    call refused(status, "dimensions")
    ! In C's order, the rows are the second dimension.
    call outlive_protect_sharded(job, "part", grid, [600_int64, 200_int64], [1_int64, 0_int64], status, &
        block=[7_int64, 200_int64], stride=[15_int64, 200_int64])
    call refused(status, "in dimension 1 it begins at 1 and has 300 elements in blocks of 7, every 15")
    call outlive_protect_replicated(job, "step", step, status)
    call ok(status)
    call outlive_due(job, is, status)
    call check(status == outlive_ok .and. is, "due")
    call outlive_on_preempt(10d0, status)
    call ok(status)
    call outlive_should_stop(job, is, status)
    call check(status == outlive_ok .and. .not. is, "should stop")
    call outlive_unprotect(job, "nobody", status)
    call check(status == outlive_nothing, "unprotect")
    call outlive_job_wait(job, status)
    call ok(status)
    call outlive_job_take_over(job, status)
    call ok(status)
    call outlive_clear(job, status)
    call ok(status)
    call outlive_protect(job, "step", step, status)
    call ok(status)
    call outlive_events_open(job, events, status)
    call ok(status)
    call outlive_events_next(events, 0d0, event, status)
    call check(status == outlive_retry, "no event yet")
    call outlive_save(job, outlive_force, status)
    call ok(status)
    call outlive_job_close(job, status)
    call ok(status)
    call outlive_events_next(events, 60d0, event, status)
    call ok(status)
    call check(event%status == outlive_ok .and. event%epoch > 0, "an event")
    call outlive_events_next(events, 60d0, event, status)
    call check(status == outlive_nothing, "the last event")
    call outlive_events_close(events, status)
    call ok(status)
    call outlive_close(pool, status)
    call ok(status)
    call outlive_job_wait(job, status)
    call refused(status, "NULL")
    print "(a)", "done"

contains

    subroutine protect_all()
        call outlive_protect(job, "grid", grid, status)
        call ok(status)
        call outlive_protect(job, "field", field, status)
        call ok(status)
        call outlive_protect(job, "wave", wave, status)
        call ok(status)
        call outlive_protect(job, "step", step, status)
        call ok(status)
        call outlive_protect(job, "bytes", bytes, status)
        call ok(status)
        call outlive_protect(job, "flags", flags, status)
        call ok(status)
        call outlive_protect(job, "label", label, status)
        call ok(status)
        call outlive_protect(job, "empty", empty, status)
        call ok(status)
    end subroutine
end program
