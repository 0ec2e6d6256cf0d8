// Sends itself a message with a tag that only some MPI libraries allow.
#include <mpi.h>

int main(int argc, char **argv) {
    char byte = 0;
    MPI_Request request;
    MPI_Init(&argc, &argv);
    MPI_Isend(&byte, 1, MPI_CHAR, 0, 32768, MPI_COMM_SELF, &request);
    MPI_Recv(&byte, 1, MPI_CHAR, 0, 32768, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return MPI_Finalize();
}
