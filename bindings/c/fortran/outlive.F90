! outlive for Fortran: saves the state of a running program, and restores it after a crash.
!
! It uses outlive.h, which describes each call in full; docs/c.md has examples. Every subroutine has
! a `status`: outlive_ok (0), or the kind of error after which it did nothing; outlive_error_text()
! returns the text.
!
! It needs a compiler for Fortran 2018, as arrays of any rank are assumed-rank arguments, and the
! preprocessor, which compilers run for files with this ending. outlive_protect.inc lies beside it.
!
! Arrays are contiguous, have the attribute `target`, and keep their address while they are
! protected. A checkpoint describes them in C's order: an array a(3, 4) has the shape (4, 3) there,
! with the same bytes.
module outlive
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int8, int16, int32, int64, real32, real64, &
        output_unit, error_unit
    implicit none
    private

    integer(c_int), parameter, public :: outlive_ok = 0, outlive_retry = 1, outlive_invalid = 2
    integer(c_int), parameter, public :: outlive_damaged = 3, outlive_full = 4, outlive_fenced = 5
    integer(c_int), parameter, public :: outlive_bug = 6, outlive_nothing = 7

    ! Flags of a save; add them up. Without any, a save is made if it is due.
    integer(c_int), parameter, public :: outlive_if_due = 0, outlive_force = 1, outlive_until_committed = 2

    ! Policies for saves that fail.
    integer(c_int), parameter, public :: outlive_raise = 0, outlive_warn = 1

    ! Figures of the saves of a job, in this process: see outlive_health in outlive.h.
    type, bind(c), public :: outlive_health
        integer(c_int64_t) :: failed_in_a_row, failed, committed
        real(c_double) :: since_commit_s
        integer(c_int) :: last_failure
    end type

    ! The fate of one checkpoint: `status` is outlive_ok if it is committed. Otherwise its save
    ! failed, for a reason of this kind. See outlive_event in outlive.h.
    type, bind(c), public :: outlive_event
        integer(c_int64_t) :: epoch
        integer(c_int) :: status
    end type

    ! Handles of a pool, of a job, of a save that is under way or over, and of a subscription to the
    ! events of a job.
    type, public :: outlive_pool
        private
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: outlive_job
        private
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: outlive_saving
        private
        type(c_ptr) :: handle = c_null_ptr
    end type
    type, public :: outlive_events
        private
        type(c_ptr) :: handle = c_null_ptr
    end type

    public :: outlive_handle, outlive_adopt
    public :: outlive_error_text, outlive_open, outlive_close, outlive_job_open, outlive_job_close
    public :: outlive_job_wait, outlive_job_take_over, outlive_due, outlive_clear, outlive_unprotect
    public :: outlive_on_preempt, outlive_should_stop
    public :: outlive_protect, outlive_protect_sharded, outlive_protect_replicated
    public :: outlive_save, outlive_save_some, outlive_wait, outlive_test, outlive_save_epoch
    public :: outlive_events_open, outlive_events_next, outlive_events_close
    public :: outlive_gate_open, outlive_gate_append, outlive_gate_publish, outlive_gate_sink
    public :: outlive_gate_give, outlive_gate_flush, outlive_gate_held, outlive_release, outlive_text
    public :: outlive_save_free, outlive_next_label, outlive_next_pin, outlive_next_metric
    public :: outlive_next_tag, outlive_tag
    public :: outlive_restore, outlive_restore_some, outlive_newest, outlive_region_shape, outlive_prune
    public :: outlive_job_keep, outlive_job_every, outlive_job_on_failure, outlive_job_health, outlive_job_leave

    ! Protects an array of any rank, or a scalar: outlive_protect(job, name, array, status).
    interface outlive_protect
        module procedure protect_int8, protect_int16, protect_int32, &
            protect_int64, protect_real32, protect_real64, &
            protect_complex32, protect_complex64, protect_logical, &
            protect_text
    end interface

    ! Protects a part of a global array: outlive_protect_sharded(job, name, array, global_shape,
    ! offset, status, block, stride), in the order of Fortran's dimensions. `offset` counts from 0.
    ! With `block` and `stride` the part is block-cyclic, as in ScaLAPACK: see
    ! outlive_protect_cyclic() in outlive.h.
    interface outlive_protect_sharded
        module procedure protect_sharded_int8, protect_sharded_int16, protect_sharded_int32, &
            protect_sharded_int64, protect_sharded_real32, protect_sharded_real64, &
            protect_sharded_complex32, protect_sharded_complex64, protect_sharded_logical
    end interface

    ! Protects an array of which every rank holds the same bytes.
    interface outlive_protect_replicated
        module procedure protect_replicated_int8, protect_replicated_int16, protect_replicated_int32, &
            protect_replicated_int64, protect_replicated_real32, protect_replicated_real64, &
            protect_replicated_complex32, protect_replicated_complex64, protect_replicated_logical
    end interface

    ! Releases an output: a function of the program for outlive_gate_sink, in the manner of C. It
    ! returns outlive_ok once the output is released, outlive_retry to be called again later, or any
    ! other status if that will never succeed. outlive_text() makes texts of its arguments.
    abstract interface
        function outlive_release(context, key, output, bytes) bind(c) result(status)
            import
            type(c_ptr), value :: context, key, output
            integer(c_size_t), value :: bytes
            integer(c_int) :: status
        end function
    end interface

    type, bind(c) :: region_info
        type(c_ptr) :: name, dtype
        integer(c_size_t) :: ndim
        type(c_ptr) :: shape
        integer(c_size_t) :: bytes
        integer(c_int) :: distribution
        type(c_ptr) :: global_shape, offset
    end type

    interface
        function c_error_message() &
                bind(c, name="outlive_error_message") result(status)
            import
            type(c_ptr) :: status
        end function

        function c_refuse(text) &
                bind(c, name="outlive_refuse") result(status)
            import
            character(kind=c_char), intent(in) :: text(*)
            integer(c_int) :: status
        end function

        function c_open(location, new_pool) &
                bind(c, name="outlive_open") result(status)
            import
            character(kind=c_char), intent(in) :: location(*)
            type(c_ptr), intent(out) :: new_pool
            integer(c_int) :: status
        end function

        function c_close(pool) &
                bind(c, name="outlive_close") result(status)
            import
            type(c_ptr), value :: pool
            integer(c_int) :: status
        end function

        function c_job_open(pool, name, every_s, new_job) &
                bind(c, name="outlive_job_open") result(status)
            import
            type(c_ptr), value :: pool
            character(kind=c_char), intent(in) :: name(*)
            real(c_double), value :: every_s
            type(c_ptr), intent(out) :: new_job
            integer(c_int) :: status
        end function

        function c_job_close(job) &
                bind(c, name="outlive_job_close") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int) :: status
        end function

        function c_job_wait(job) &
                bind(c, name="outlive_job_wait") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int) :: status
        end function

        function c_job_leave(job) &
                bind(c, name="outlive_job_leave") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int) :: status
        end function

        function c_job_every(job, every, slowdown_max) &
                bind(c, name="outlive_job_every") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: every(*)
            real(c_double), value :: slowdown_max
            integer(c_int) :: status
        end function

        function c_job_on_failure(job, on_failure, fail_after_s) &
                bind(c, name="outlive_job_on_failure") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int), value :: on_failure
            real(c_double), value :: fail_after_s
            integer(c_int) :: status
        end function

        function c_job_health(job, health) &
                bind(c, name="outlive_job_health") result(status)
            import
            type(c_ptr), value :: job
            type(outlive_health), intent(out) :: health
            integer(c_int) :: status
        end function

        function c_job_take_over(job) &
                bind(c, name="outlive_job_take_over") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int) :: status
        end function

        function c_clear(job) &
                bind(c, name="outlive_clear") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int) :: status
        end function

        function c_next_pin(job) &
                bind(c, name="outlive_next_pin") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int) :: status
        end function

        function c_on_preempt(grace_s) &
                bind(c, name="outlive_on_preempt") result(status)
            import
            real(c_double), value :: grace_s
            integer(c_int) :: status
        end function

        function c_should_stop(job, answer) &
                bind(c, name="outlive_should_stop") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int), intent(out) :: answer
            integer(c_int) :: status
        end function

        function c_due(job, answer) &
                bind(c, name="outlive_due") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int), intent(out) :: answer
            integer(c_int) :: status
        end function

        function c_protect(job, name, memory, dtype, ndim, shape) &
                bind(c, name="outlive_protect") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: memory
            character(kind=c_char), intent(in) :: dtype(*)
            integer(c_size_t), value :: ndim
            integer(c_size_t), intent(in) :: shape(*)
            integer(c_int) :: status
        end function

        function c_protect_replicated(job, name, memory, dtype, ndim, shape) &
                bind(c, name="outlive_protect_replicated") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: memory
            character(kind=c_char), intent(in) :: dtype(*)
            integer(c_size_t), value :: ndim
            integer(c_size_t), intent(in) :: shape(*)
            integer(c_int) :: status
        end function

        function c_protect_sharded(job, name, memory, dtype, ndim, shape, global_shape, offset) &
                bind(c, name="outlive_protect_sharded") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: memory
            character(kind=c_char), intent(in) :: dtype(*)
            integer(c_size_t), value :: ndim
            integer(c_size_t), intent(in) :: shape(*)
            integer(c_size_t), intent(in) :: global_shape(*)
            integer(c_size_t), intent(in) :: offset(*)
            integer(c_int) :: status
        end function

        function c_protect_cyclic(job, name, memory, dtype, ndim, shape, global_shape, offset, block, &
                stride) bind(c, name="outlive_protect_cyclic") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: memory
            character(kind=c_char), intent(in) :: dtype(*)
            integer(c_size_t), value :: ndim
            integer(c_size_t), intent(in) :: shape(*)
            integer(c_size_t), intent(in) :: global_shape(*)
            integer(c_size_t), intent(in) :: offset(*)
            integer(c_size_t), intent(in) :: block(*)
            integer(c_size_t), intent(in) :: stride(*)
            integer(c_int) :: status
        end function

        function c_unprotect(job, name) &
                bind(c, name="outlive_unprotect") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int) :: status
        end function

        function c_save(job, flags, saving) &
                bind(c, name="outlive_save") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int), value :: flags
            type(c_ptr), value :: saving
            integer(c_int) :: status
        end function

        function c_save_some(job, names, count, flags, saving) &
                bind(c, name="outlive_save_some") result(status)
            import
            type(c_ptr), value :: job
            type(c_ptr), intent(in) :: names(*)
            integer(c_size_t), value :: count
            integer(c_int), value :: flags
            type(c_ptr), value :: saving
            integer(c_int) :: status
        end function

        function c_wait(saving) &
                bind(c, name="outlive_wait") result(status)
            import
            type(c_ptr), value :: saving
            integer(c_int) :: status
        end function

        function c_save_free(saving) &
                bind(c, name="outlive_save_free") result(status)
            import
            type(c_ptr), value :: saving
            integer(c_int) :: status
        end function

        function c_test(saving, answer) &
                bind(c, name="outlive_test") result(status)
            import
            type(c_ptr), value :: saving
            integer(c_int), intent(out) :: answer
            integer(c_int) :: status
        end function

        function c_save_epoch(saving, its_epoch) &
                bind(c, name="outlive_save_epoch") result(status)
            import
            type(c_ptr), value :: saving
            integer(c_int64_t), intent(out) :: its_epoch
            integer(c_int) :: status
        end function

        function c_next_label(job, label) &
                bind(c, name="outlive_next_label") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: label(*)
            integer(c_int) :: status
        end function

        function c_next_tag(job, tag) &
                bind(c, name="outlive_next_tag") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: tag(*)
            integer(c_int) :: status
        end function

        function c_tag(job, epoch, tag, add) &
                bind(c, name="outlive_tag") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), value :: epoch
            character(kind=c_char), intent(in) :: tag(*)
            integer(c_int), value :: add
            integer(c_int) :: status
        end function

        function c_next_metric(job, name, number) &
                bind(c, name="outlive_next_metric") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            real(c_double), value :: number
            integer(c_int) :: status
        end function

        function c_events_open(job, new_events) &
                bind(c, name="outlive_events_open") result(status)
            import
            type(c_ptr), value :: job
            type(c_ptr), intent(out) :: new_events
            integer(c_int) :: status
        end function

        function c_events_next(events, timeout_s, event) &
                bind(c, name="outlive_events_next") result(status)
            import
            type(c_ptr), value :: events
            real(c_double), value :: timeout_s
            type(outlive_event), intent(out) :: event
            integer(c_int) :: status
        end function

        function c_events_close(events) &
                bind(c, name="outlive_events_close") result(status)
            import
            type(c_ptr), value :: events
            integer(c_int) :: status
        end function

        function c_gate_open(job, bytes_max) &
                bind(c, name="outlive_gate_open") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), value :: bytes_max
            integer(c_int) :: status
        end function

        function c_gate_append(job, file, output, bytes) &
                bind(c, name="outlive_gate_append") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: file(*)
            type(c_ptr), value :: output
            integer(c_size_t), value :: bytes
            integer(c_int) :: status
        end function

        function c_gate_publish(job, temporary, last) &
                bind(c, name="outlive_gate_publish") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: temporary(*), last(*)
            integer(c_int) :: status
        end function

        function c_gate_sink(job, name, release, context) &
                bind(c, name="outlive_gate_sink") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            type(c_funptr), value :: release
            type(c_ptr), value :: context
            integer(c_int) :: status
        end function

        function c_gate_give(job, name, output, bytes) &
                bind(c, name="outlive_gate_give") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            type(c_ptr), value :: output
            integer(c_size_t), value :: bytes
            integer(c_int) :: status
        end function

        function c_gate_flush(job, timeout_s) &
                bind(c, name="outlive_gate_flush") result(status)
            import
            type(c_ptr), value :: job
            real(c_double), value :: timeout_s
            integer(c_int) :: status
        end function

        function c_gate_held(job, outputs) &
                bind(c, name="outlive_gate_held") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), intent(out) :: outputs
            integer(c_int) :: status
        end function

        function c_restore(job, epoch, restored) &
                bind(c, name="outlive_restore") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), value :: epoch
            integer(c_int64_t), intent(out) :: restored
            integer(c_int) :: status
        end function

        function c_restore_some(job, epoch, names, count, restored) &
                bind(c, name="outlive_restore_some") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), value :: epoch
            type(c_ptr), intent(in) :: names(*)
            integer(c_size_t), value :: count
            integer(c_int64_t), intent(out) :: restored
            integer(c_int) :: status
        end function

        function c_newest(job, its_epoch) &
                bind(c, name="outlive_newest") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), intent(out) :: its_epoch
            integer(c_int) :: status
        end function

        function c_job_keep(job, rules) &
                bind(c, name="outlive_job_keep") result(status)
            import
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: rules(*)
            integer(c_int) :: status
        end function

        function c_prune(job, keep_last, dropped) &
                bind(c, name="outlive_prune") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), value :: keep_last
            integer(c_int64_t), intent(out) :: dropped
            integer(c_int) :: status
        end function

        function c_checkpoint_open(job, epoch, new_checkpoint) &
                bind(c, name="outlive_checkpoint_open") result(status)
            import
            type(c_ptr), value :: job
            integer(c_int64_t), value :: epoch
            type(c_ptr), intent(out) :: new_checkpoint
            integer(c_int) :: status
        end function

        function c_checkpoint_close(checkpoint) &
                bind(c, name="outlive_checkpoint_close") result(status)
            import
            type(c_ptr), value :: checkpoint
            integer(c_int) :: status
        end function

        function c_checkpoint_find(checkpoint, name, info) &
                bind(c, name="outlive_checkpoint_find") result(status)
            import
            type(c_ptr), value :: checkpoint
            character(kind=c_char), intent(in) :: name(*)
            type(region_info), intent(out) :: info
            integer(c_int) :: status
        end function

        function c_strlen(text) bind(c, name="strlen") result(length)
            import
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function
    end interface

contains

    ! Returns the text of the last error of this thread.
    function outlive_error_text() result(text)
        character(:), allocatable :: text
        text = outlive_text(c_error_message())
    end function

    ! Opens a pool: a directory, its pool.toml, or s3://BUCKET/PREFIX. Creates it if it does not
    ! exist.
    subroutine outlive_open(location, pool, status)
        character(*), intent(in) :: location
        type(outlive_pool), intent(out) :: pool
        integer(c_int), intent(out) :: status
        status = c_open(c_text(location), pool%handle)
    end subroutine

    ! Closes a pool. Its jobs stay open.
    subroutine outlive_close(pool, status)
        type(outlive_pool), intent(inout) :: pool
        integer(c_int), intent(out) :: status
        status = c_close(pool%handle)
        pool%handle = c_null_ptr
    end subroutine

    ! Opens a job. Saves are due once every `every_s` seconds; 0: always.
    subroutine outlive_job_open(pool, name, every_s, job, status)
        type(outlive_pool), intent(in) :: pool
        character(*), intent(in) :: name
        real(real64), intent(in) :: every_s
        type(outlive_job), intent(out) :: job
        integer(c_int), intent(out) :: status
        status = c_job_open(pool%handle, c_text(name), every_s, job%handle)
    end subroutine

    ! For the module outlive_mpi: returns the C handle of a pool.
    function outlive_handle(pool) result(handle)
        type(outlive_pool), intent(in) :: pool
        type(c_ptr) :: handle
        handle = pool%handle
    end function

    ! For the module outlive_mpi: makes a job of its C handle.
    subroutine outlive_adopt(job, handle)
        type(outlive_job), intent(out) :: job
        type(c_ptr), intent(in) :: handle
        job%handle = handle
    end subroutine

    ! Waits for the last save, and closes the job.
    subroutine outlive_job_close(job, status)
        type(outlive_job), intent(inout) :: job
        integer(c_int), intent(out) :: status
        status = c_job_close(job%handle)
        job%handle = c_null_ptr
    end subroutine

    ! Closes the job of a rank that ends early: it waits for no other rank of its group.
    subroutine outlive_job_leave(job, status)
        type(outlive_job), intent(inout) :: job
        integer(c_int), intent(out) :: status
        status = c_job_leave(job%handle)
        job%handle = c_null_ptr
    end subroutine

    ! Waits until no save is under way.
    subroutine outlive_job_wait(job, status)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(out) :: status
        status = c_job_wait(job%handle)
    end subroutine

    ! Lets the next save continue from this state, although another program has saved since.
    subroutine outlive_job_take_over(job, status)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(out) :: status
        status = c_job_take_over(job%handle)
    end subroutine

    ! Ends the protection of all regions.
    subroutine outlive_clear(job, status)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(out) :: status
        status = c_clear(job%handle)
    end subroutine

    ! Pins the next checkpoint.
    subroutine outlive_next_pin(job, status)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(out) :: status
        status = c_next_pin(job%handle)
    end subroutine

    ! Lets SIGTERM, SIGUSR1 and SIGUSR2 ask the program to save and to end, `grace_s` seconds later.
    subroutine outlive_on_preempt(grace_s, status)
        real(c_double), intent(in) :: grace_s
        integer(c_int), intent(out) :: status
        status = c_on_preempt(grace_s)
    end subroutine

    ! Whether the program is to save once more and to end. Collective in a group.
    subroutine outlive_should_stop(job, stops, status)
        type(outlive_job), intent(in) :: job
        logical, intent(out) :: stops
        integer(c_int), intent(out) :: status
        integer(c_int) :: answer
        status = c_should_stop(job%handle, answer)
        stops = answer /= 0
    end subroutine

    ! Whether a save is due.
    subroutine outlive_due(job, due, status)
        type(outlive_job), intent(in) :: job
        logical, intent(out) :: due
        integer(c_int), intent(out) :: status
        integer(c_int) :: answer
        status = c_due(job%handle, answer)
        due = answer /= 0
    end subroutine

    ! The procedures of outlive_protect, outlive_protect_replicated and outlive_protect_sharded.
#define TYPE integer(int8)
#define DTYPE "i1"
#define PROTECT protect_int8
#define PROTECT_REPLICATED protect_replicated_int8
#define PROTECT_SHARDED protect_sharded_int8
#include "outlive_protect.inc"
#define TYPE integer(int16)
#define DTYPE "i2"
#define PROTECT protect_int16
#define PROTECT_REPLICATED protect_replicated_int16
#define PROTECT_SHARDED protect_sharded_int16
#include "outlive_protect.inc"
#define TYPE integer(int32)
#define DTYPE "i4"
#define PROTECT protect_int32
#define PROTECT_REPLICATED protect_replicated_int32
#define PROTECT_SHARDED protect_sharded_int32
#include "outlive_protect.inc"
#define TYPE integer(int64)
#define DTYPE "i8"
#define PROTECT protect_int64
#define PROTECT_REPLICATED protect_replicated_int64
#define PROTECT_SHARDED protect_sharded_int64
#include "outlive_protect.inc"
#define TYPE real(real32)
#define DTYPE "f4"
#define PROTECT protect_real32
#define PROTECT_REPLICATED protect_replicated_real32
#define PROTECT_SHARDED protect_sharded_real32
#include "outlive_protect.inc"
#define TYPE real(real64)
#define DTYPE "f8"
#define PROTECT protect_real64
#define PROTECT_REPLICATED protect_replicated_real64
#define PROTECT_SHARDED protect_sharded_real64
#include "outlive_protect.inc"
#define TYPE complex(real32)
#define DTYPE "c8"
#define PROTECT protect_complex32
#define PROTECT_REPLICATED protect_replicated_complex32
#define PROTECT_SHARDED protect_sharded_complex32
#include "outlive_protect.inc"
#define TYPE complex(real64)
#define DTYPE "c16"
#define PROTECT protect_complex64
#define PROTECT_REPLICATED protect_replicated_complex64
#define PROTECT_SHARDED protect_sharded_complex64
#include "outlive_protect.inc"
#define TYPE logical
#define DTYPE logical_dtype()
#define PROTECT protect_logical
#define PROTECT_REPLICATED protect_replicated_logical
#define PROTECT_SHARDED protect_sharded_logical
#include "outlive_protect.inc"

    ! Protects a text, as bytes.
    subroutine protect_text(job, name, array, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: name
        character(*), intent(inout), target :: array
        integer(c_int), intent(out) :: status
        status = c_protect(job%handle, c_text(name), c_loc(array), c_text("u1"), 1_c_size_t, &
            [int(len(array), c_size_t)])
    end subroutine

    ! Ends the protection of a region; then its memory may go.
    subroutine outlive_unprotect(job, name, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: name
        integer(c_int), intent(out) :: status
        status = c_unprotect(job%handle, c_text(name))
    end subroutine

    ! Saves all protected regions, if a save is due. `saving` is the handle of the save; free it
    ! with outlive_save_free.
    subroutine outlive_save(job, flags, status, saving)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(in) :: flags
        integer(c_int), intent(out) :: status
        type(outlive_saving), intent(out), optional :: saving
        type(c_ptr), target :: handle
        handle = c_null_ptr
        call flush_printed()
        if (present(saving)) then
            status = c_save(job%handle, flags, c_loc(handle))
            saving%handle = handle
        else
            status = c_save(job%handle, flags, c_null_ptr)
        end if
    end subroutine

    ! Saves the protected regions of these names.
    subroutine outlive_save_some(job, names, flags, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: names(:)
        integer(c_int), intent(in) :: flags
        integer(c_int), intent(out) :: status
        character(kind=c_char), allocatable, target :: letters(:, :)
        allocate (letters(len(names) + 1, size(names)), source=c_texts(names))
        call flush_printed()
        status = c_save_some(job%handle, addresses(letters), size(names, kind=c_size_t), flags, c_null_ptr)
    end subroutine

    ! Writes out what Fortran keeps of standard output and error, under `outlive run --gate`: a save
    ! covers what is written.
    subroutine flush_printed()
        integer :: length
        call get_environment_variable("OUTLIVE_RUN_TRANSCRIPT", length=length)
        if (length > 0) then
            flush (output_unit)
            flush (error_unit)
        end if
    end subroutine

    ! Waits until a save is committed.
    subroutine outlive_wait(saving, status)
        type(outlive_saving), intent(in) :: saving
        integer(c_int), intent(out) :: status
        status = c_wait(saving%handle)
    end subroutine

    ! Whether a save is over.
    subroutine outlive_test(saving, done, status)
        type(outlive_saving), intent(in) :: saving
        logical, intent(out) :: done
        integer(c_int), intent(out) :: status
        integer(c_int) :: answer
        status = c_test(saving%handle, answer)
        done = answer /= 0
    end subroutine

    ! Returns the epoch that a save's checkpoint has once it is committed.
    subroutine outlive_save_epoch(saving, epoch, status)
        type(outlive_saving), intent(in) :: saving
        integer(int64), intent(out) :: epoch
        integer(c_int), intent(out) :: status
        epoch = 0
        status = c_save_epoch(saving%handle, epoch)
    end subroutine

    ! Frees the handle of a save; the save goes on.
    subroutine outlive_save_free(saving, status)
        type(outlive_saving), intent(inout) :: saving
        integer(c_int), intent(out) :: status
        status = c_save_free(saving%handle)
        saving%handle = c_null_ptr
    end subroutine

    ! Subscribes to the fate of each checkpoint of a job from now on. The subscription keeps every
    ! event until it is taken. See outlive_events_open() in outlive.h.
    subroutine outlive_events_open(job, events, status)
        type(outlive_job), intent(in) :: job
        type(outlive_events), intent(out) :: events
        integer(c_int), intent(out) :: status
        status = c_events_open(job%handle, events%handle)
    end subroutine

    ! Takes the next event, and waits for it for at most `timeout_s` seconds. The status is
    ! outlive_retry if none came in time, and outlive_nothing if none will come. If `event%status`
    ! is not outlive_ok, outlive_error_text() returns the reason. huge(timeout_s) waits without limit.
    subroutine outlive_events_next(events, timeout_s, event, status)
        type(outlive_events), intent(in) :: events
        real(real64), intent(in) :: timeout_s
        type(outlive_event), intent(out) :: event
        integer(c_int), intent(out) :: status
        status = c_events_next(events%handle, timeout_s, event)
    end subroutine

    ! Ends a subscription, and drops the events that were not taken.
    subroutine outlive_events_close(events, status)
        type(outlive_events), intent(inout) :: events
        integer(c_int), intent(out) :: status
        status = c_events_close(events%handle)
        events%handle = c_null_ptr
    end subroutine

    ! Opens the output gate of a job, in each run: each output waits until the checkpoint of a later
    ! save is committed (docs/gate.md). From `bytes_max` bytes of outputs on, a save is due; without
    ! it, from 4 MiB on. See outlive_gate_open() in outlive.h.
    subroutine outlive_gate_open(job, status, bytes_max)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(out) :: status
        integer(int64), intent(in), optional :: bytes_max
        integer(c_int64_t) :: bytes
        bytes = 0
        if (present(bytes_max)) bytes = bytes_max
        status = c_gate_open(job%handle, bytes)
    end subroutine

    ! Appends a text to a file once a checkpoint covers it, with the blanks at its end. A line ends
    ! with new_line("a").
    subroutine outlive_gate_append(job, file, output, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: file
        character(*), intent(in), target :: output
        integer(c_int), intent(out) :: status
        status = c_gate_append(job%handle, c_text(file), c_loc(output), len(output, c_size_t))
    end subroutine

    ! Lets a finished file appear as `last` once a checkpoint covers it. Close the unit before.
    subroutine outlive_gate_publish(job, temporary, last, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: temporary, last
        integer(c_int), intent(out) :: status
        status = c_gate_publish(job%handle, c_text(temporary), c_text(last))
    end subroutine

    ! Opens a sink of the program's own. `release` gets each output of outlive_gate_give after its
    ! checkpoint is committed, in order, in a thread of outlive's. `context` is for `release`.
    subroutine outlive_gate_sink(job, name, release, status, context)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: name
        procedure(outlive_release) :: release
        integer(c_int), intent(out) :: status
        type(c_ptr), intent(in), optional :: context
        type(c_ptr) :: given
        given = c_null_ptr
        if (present(context)) given = context
        status = c_gate_sink(job%handle, c_text(name), c_funloc(release), given)
    end subroutine

    ! Gives a text to a sink of outlive_gate_sink.
    subroutine outlive_gate_give(job, name, output, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: name
        character(*), intent(in), target :: output
        integer(c_int), intent(out) :: status
        status = c_gate_give(job%handle, c_text(name), c_loc(output), len(output, c_size_t))
    end subroutine

    ! Waits until every output is released, at most `timeout_s` seconds. Save before.
    ! huge(timeout_s) waits without limit.
    subroutine outlive_gate_flush(job, timeout_s, status)
        type(outlive_job), intent(in) :: job
        real(real64), intent(in) :: timeout_s
        integer(c_int), intent(out) :: status
        status = c_gate_flush(job%handle, timeout_s)
    end subroutine

    ! Returns the number of outputs that are not released.
    subroutine outlive_gate_held(job, outputs, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(out) :: outputs
        integer(c_int), intent(out) :: status
        outputs = 0
        status = c_gate_held(job%handle, outputs)
    end subroutine

    ! Returns the text at an address: of this many bytes, or up to its zero.
    function outlive_text(start, bytes) result(text)
        type(c_ptr), intent(in) :: start
        integer(c_size_t), intent(in), optional :: bytes
        character(:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        integer(c_size_t) :: length, at
        if (present(bytes)) then
            length = bytes
        else
            length = c_strlen(start)
        end if
        call c_f_pointer(start, letters, [length])
        allocate (character(length) :: text)
        do at = 1, length
            text(at:at) = letters(at)
        end do
    end function

    ! Gives the next checkpoint a label. The next save is due then.
    subroutine outlive_next_label(job, label, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: label
        integer(c_int), intent(out) :: status
        status = c_next_label(job%handle, c_text(label))
    end subroutine

    ! Gives the next checkpoint a tag, beside those of earlier calls.
    subroutine outlive_next_tag(job, tag, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: tag
        integer(c_int), intent(out) :: status
        status = c_next_tag(job%handle, c_text(tag))
    end subroutine

    ! Adds a tag to a checkpoint, or removes it.
    subroutine outlive_tag(job, epoch, tag, add, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: epoch
        character(*), intent(in) :: tag
        logical, intent(in) :: add
        integer(c_int), intent(out) :: status
        status = c_tag(job%handle, epoch, c_text(tag), merge(1_c_int, 0_c_int, add))
    end subroutine

    ! Stores a number with the next checkpoint.
    subroutine outlive_next_metric(job, name, number, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: name
        real(real64), intent(in) :: number
        integer(c_int), intent(out) :: status
        status = c_next_metric(job%handle, c_text(name), number)
    end subroutine

    ! Fills all protected regions from the newest whole checkpoint (`epoch` 0), or from this one.
    ! `restored` is its epoch. The status is outlive_nothing if there is no checkpoint.
    subroutine outlive_restore(job, epoch, restored, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: epoch
        integer(int64), intent(out) :: restored
        integer(c_int), intent(out) :: status
        call flush_printed()
        status = c_restore(job%handle, epoch, restored)
    end subroutine

    ! Fills the protected regions of these names.
    subroutine outlive_restore_some(job, epoch, names, restored, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: epoch
        character(*), intent(in) :: names(:)
        integer(int64), intent(out) :: restored
        integer(c_int), intent(out) :: status
        character(kind=c_char), allocatable, target :: letters(:, :)
        restored = 0
        allocate (letters(len(names) + 1, size(names)), source=c_texts(names))
        call flush_printed()
        status = c_restore_some(job%handle, epoch, addresses(letters), size(names, kind=c_size_t), restored)
    end subroutine

    ! Returns the epoch of the newest checkpoint.
    subroutine outlive_newest(job, epoch, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(out) :: epoch
        integer(c_int), intent(out) :: status
        status = c_newest(job%handle, epoch)
    end subroutine

    ! Returns the shape of a region of a checkpoint (`epoch` 0: the newest), in Fortran's order, to
    ! allocate memory before a restore.
    subroutine outlive_region_shape(job, epoch, name, extents, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: epoch
        character(*), intent(in) :: name
        integer(int64), allocatable, intent(out) :: extents(:)
        integer(c_int), intent(out) :: status
        type(c_ptr) :: checkpoint
        type(region_info) :: info
        integer(c_size_t), pointer :: there(:)
        integer(c_int) :: closed
        status = c_checkpoint_open(job%handle, epoch, checkpoint)
        if (status /= outlive_ok) return
        status = c_checkpoint_find(checkpoint, c_text(name), info)
        if (status == outlive_ok) then
            call c_f_pointer(info%shape, there, [info%ndim])
            extents = int(there(size(there):1:-1), int64)
        end if
        closed = c_checkpoint_close(checkpoint)
        if (status == outlive_ok) status = closed
    end subroutine

    ! Drops, after each commit from the next save on, the checkpoints that no rule keeps. The rules
    ! are a text such as "last 10 | every 100"; in a group those of rank 0 count.
    subroutine outlive_job_keep(job, rules, status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: rules
        integer(c_int), intent(out) :: status
        status = c_job_keep(job%handle, c_text(rules))
    end subroutine

    ! Sets the interval between saves: "auto", "continuous" or a time such as "30s". `slowdown_max` is
    ! the budget of "continuous", 0.03 without it. See outlive_job_every() in outlive.h.
    subroutine outlive_job_every(job, every, status, slowdown_max)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: every
        integer(c_int), intent(out) :: status
        real(real64), intent(in), optional :: slowdown_max
        real(c_double) :: budget
        budget = 0
        if (present(slowdown_max)) budget = slowdown_max
        status = c_job_every(job%handle, c_text(every), budget)
    end subroutine

    ! Sets the policy for saves that fail: outlive_raise, or outlive_warn until nothing was
    ! committed for `fail_after_s` seconds. See outlive_job_on_failure() in outlive.h.
    subroutine outlive_job_on_failure(job, on_failure, fail_after_s, status)
        type(outlive_job), intent(in) :: job
        integer(c_int), intent(in) :: on_failure
        real(real64), intent(in) :: fail_after_s
        integer(c_int), intent(out) :: status
        status = c_job_on_failure(job%handle, on_failure, fail_after_s)
    end subroutine

    ! Returns figures of the saves of a job, in this process.
    subroutine outlive_job_health(job, health, status)
        type(outlive_job), intent(in) :: job
        type(outlive_health), intent(out) :: health
        integer(c_int), intent(out) :: status
        status = c_job_health(job%handle, health)
    end subroutine

    ! Keeps the newest checkpoints, and those with a label or a pin; `dropped` is the number of
    ! dropped ones.
    subroutine outlive_prune(job, keep_last, dropped, status)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: keep_last
        integer(int64), intent(out) :: dropped
        integer(c_int), intent(out) :: status
        status = c_prune(job%handle, keep_last, dropped)
    end subroutine

    ! Converts a text to C: without blanks at its end, and with a zero.
    pure function c_text(text) result(letters)
        character(*), intent(in) :: text
        character(kind=c_char) :: letters(len_trim(text) + 1)
        integer :: at
        do at = 1, len_trim(text)
            letters(at) = text(at:at)
        end do
        letters(size(letters)) = c_null_char
    end function

    ! Converts texts to C, one a column.
    pure function c_texts(texts) result(letters)
        character(*), intent(in) :: texts(:)
        character(kind=c_char) :: letters(len(texts) + 1, size(texts))
        integer :: at
        letters = c_null_char
        do at = 1, size(texts)
            letters(:len_trim(texts(at)) + 1, at) = c_text(texts(at))
        end do
    end function

    ! Returns the address of each column.
    function addresses(letters) result(pointers)
        character(kind=c_char), intent(in), target :: letters(:, :)
        type(c_ptr) :: pointers(size(letters, 2))
        integer :: at
        do at = 1, size(letters, 2)
            pointers(at) = c_loc(letters(1, at))
        end do
    end function

    pure function in_c_order(extents) result(reversed)
        integer(c_size_t), intent(in) :: extents(:)
        integer(c_size_t) :: reversed(size(extents))
        reversed = extents(size(extents):1:-1)
    end function

    ! Refuses an array that is not contiguous: a restore would fill a copy of it.
    function contiguous(is_it) result(status)
        logical, intent(in) :: is_it
        integer(c_int) :: status
        status = outlive_ok
        if (.not. is_it) status = c_refuse(c_text("the array is not contiguous: protect the whole array"))
    end function

    ! Protects a part of a global array: a box, or blocks.
    function part(job, name, memory, dtype, extents, global_shape, offset, block, stride) result(status)
        type(outlive_job), intent(in) :: job
        character(*), intent(in) :: name, dtype
        type(c_ptr), intent(in) :: memory
        integer(c_size_t), intent(in) :: extents(:)
        integer(int64), intent(in) :: global_shape(:), offset(:)
        integer(int64), intent(in), optional :: block(:), stride(:)
        integer(c_int) :: status
        integer(c_size_t) :: ndim
        ndim = size(extents)
        if (size(global_shape) /= ndim .or. size(offset) /= ndim) then
            status = c_refuse(c_text( &
                "the array, its global shape and its offset need equally many dimensions"))
        else if (.not. present(block) .and. .not. present(stride)) then
            status = c_protect_sharded(job%handle, c_text(name), memory, c_text(dtype), ndim, &
                in_c_order(extents), in_c_order(int(global_shape, c_size_t)), &
                in_c_order(int(offset, c_size_t)))
        else if (.not. (present(block) .and. present(stride))) then
            status = c_refuse(c_text("a part in blocks needs both, its block and its stride"))
        else if (size(block) /= ndim .or. size(stride) /= ndim) then
            status = c_refuse(c_text("the array, its block and its stride need equally many dimensions"))
        else if (any(block < 1) .or. any(stride < 1)) then
            status = c_refuse(c_text("a block needs at least one element, and so does its stride"))
        else
            status = c_protect_cyclic(job%handle, c_text(name), memory, c_text(dtype), ndim, &
                in_c_order(extents), in_c_order(int(global_shape, c_size_t)), &
                in_c_order(int(offset, c_size_t)), in_c_order(int(block, c_size_t)), &
                in_c_order(int(stride, c_size_t)))
        end if
    end function

    ! Returns the dtype of a logical, which is as long as a default integer.
    pure function logical_dtype() result(dtype)
        character(2) :: dtype
        write (dtype, "(a, i1)") "i", storage_size(.true.) / 8
    end function

end module
