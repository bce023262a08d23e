! Jobs of the ranks of an MPI program, beside the module outlive. Compile it and outlive_mpi.c with
! the program's own MPI. docs/c.md is the manual.
module outlive_mpi
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: real64
    use outlive
    implicit none
    private
    public :: outlive_job_open_mpi

    interface
        function c_job_open_mpi(pool, name, every_s, comm, patience_s, schedule, new_job) &
                bind(c, name="outlive_job_open_mpi_fortran") result(status)
            import
            type(c_ptr), value :: pool
            character(kind=c_char), intent(in) :: name(*)
            real(c_double), value :: every_s
            integer(c_int), value :: comm
            real(c_double), value :: patience_s
            character(kind=c_char), intent(in) :: schedule(*)
            type(c_ptr), intent(out) :: new_job
            integer(c_int) :: status
        end function
    end interface

contains

    ! Opens a job of all ranks of `comm` (of mpi_f08: comm%mpi_val): every rank calls it, and saves
    ! and restores become collective. Saves are due once every `every_s` seconds; 0: always.
    ! `patience_s`: seconds without a message of a rank after which a save fails; 120 if absent.
    ! `schedule`: when the ranks write; "coordinated" if absent.
    subroutine outlive_job_open_mpi(pool, name, every_s, comm, job, status, patience_s, schedule)
        type(outlive_pool), intent(in) :: pool
        character(*), intent(in) :: name
        real(real64), intent(in) :: every_s
        integer, intent(in) :: comm
        type(outlive_job), intent(out) :: job
        integer(c_int), intent(out) :: status
        real(real64), intent(in), optional :: patience_s
        character(*), intent(in), optional :: schedule
        real(real64) :: patience
        character(:), allocatable :: when
        type(c_ptr) :: handle

        patience = 0
        if (present(patience_s)) patience = patience_s
        when = "coordinated"
        if (present(schedule)) when = trim(schedule)
        handle = c_null_ptr
        status = c_job_open_mpi(outlive_handle(pool), trim(name) // c_null_char, every_s, &
            int(comm, c_int), patience, when // c_null_char, handle)
        call outlive_adopt(job, handle)
    end subroutine
end module
