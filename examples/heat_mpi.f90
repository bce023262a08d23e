! Heat spreads over a plate that is divided among the ranks of MPI, in blocks of columns. If you
! kill the program at any moment and start it again, on any number of ranks, it continues where it
! was. Its result is the same, bit for bit. heat_mpi.c is the same program in C.
!
!     make install PREFIX=$HOME/.local
!     cd $HOME/.local/include && mpicc -c -I. outlive_mpi.c -o outlive_mpi_c.o && cd -
!     mpifort -O2 $HOME/.local/include/outlive.F90 $HOME/.local/include/outlive_mpi.f90 examples/heat_mpi.f90 \
!         $HOME/.local/include/outlive_mpi_c.o -o heat_mpi -L$HOME/.local/lib -Wl,-rpath,$HOME/.local/lib -loutlive
!     mpirun -n 4 ./heat_mpi ckpt 2000
program heat_mpi
    use mpi
    use outlive
    use outlive_mpi
    use, intrinsic :: iso_fortran_env
    implicit none
    integer, parameter :: rows = 800, columns = 600
    ! With a column of each neighbour: a column is contiguous in Fortran, as a row is in C.
    real(real64), allocatable, target :: now(:, :), next(:, :)
    integer(int64), target :: step
    type(outlive_pool) :: pool
    type(outlive_job) :: job
    integer(int64) :: epoch, last
    integer :: status, error, rank, ranks, first, mine
    character(200) :: location, text
    real(real64) :: every_s

    location = "ckpt"
    last = 1000
    every_s = 1
    if (command_argument_count() > 0) call get_command_argument(1, location)
    if (command_argument_count() > 1) then
        call get_command_argument(2, text)
        read (text, *) last
    end if
    if (command_argument_count() > 2) then
        call get_command_argument(3, text)
        read (text, *) every_s
    end if
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    first = columns * rank / ranks
    mine = columns * (rank + 1) / ranks - first
    allocate (now(rows, 0:mine + 1), next(rows, 0:mine + 1), source=0d0)
    step = 0

    call outlive_open(location, pool, status)
    call stop_if(status)
    call outlive_job_open_mpi(pool, "heat", every_s, MPI_COMM_WORLD, job, status, patience_s=30d0)
    call stop_if(status)
    call outlive_protect_sharded(job, "plate", now(:, 1:mine), int([rows, columns], int64), &
        int([0, first], int64), status)
    call stop_if(status)
    call outlive_protect_replicated(job, "step", step, status)
    call stop_if(status)
    call outlive_restore(job, 0_int64, epoch, status)
    if (status /= outlive_nothing) then
        call stop_if(status)
    else if (first < columns / 2 .and. columns / 2 <= first + mine) then
        now(rows / 2, columns / 2 - first) = 1d6  ! the program begins
    end if
    if (rank == 0) print "(a, i0, a, i0)", "heat: ", ranks, " ranks from step ", step

    do while (step < last)
        call exchange()
        call advance()
        call outlive_save(job, outlive_if_due, status)  ! all ranks together
        call stop_if(status)
    end do
    call outlive_save(job, outlive_force, status)
    call stop_if(status)
    call outlive_job_close(job, status)
    call stop_if(status)
    call outlive_close(pool, status)
    call stop_if(status)
    call tell()
    call MPI_Finalize(error)

contains

    ! Fills the columns beside the own ones: from neighbours, or with the cold of the edge.
    subroutine exchange()
        integer :: left, right
        left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
        right = merge(rank + 1, MPI_PROC_NULL, rank + 1 < ranks)
        call MPI_Sendrecv(now(:, 1), rows, MPI_DOUBLE_PRECISION, left, 0, now(:, mine + 1), rows, &
            MPI_DOUBLE_PRECISION, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
        call MPI_Sendrecv(now(:, mine), rows, MPI_DOUBLE_PRECISION, right, 1, now(:, 0), rows, &
            MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    end subroutine

    subroutine advance()
        integer :: row, column
        real(real64) :: above, below
        do column = 1, mine
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
        now(:, 1:mine) = next(:, 1:mine)
        step = step + 1
    end subroutine

    ! Prints a digest that does not depend on the division of the plate: the exclusive or of all
    ! cells.
    subroutine tell()
        integer(int64) :: digest, all
        integer :: row, column, turn
        digest = 0
        do column = 1, mine
            do row = 1, rows
                turn = modulo(row * 7 + (first + column) * 13, 64)
                digest = ieor(digest, ishftc(transfer(now(row, column), digest), turn))
            end do
        end do
        call MPI_Reduce(digest, all, 1, MPI_INTEGER8, MPI_BXOR, 0, MPI_COMM_WORLD, error)
        if (rank == 0) print "(a, i0, a, z16.16)", "heat: step ", step, ", ", all
    end subroutine

    subroutine stop_if(status)
        integer, intent(in) :: status
        if (status == outlive_ok) return
        write (error_unit, "(2a)") "heat: ", outlive_error_text()
        call MPI_Abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
