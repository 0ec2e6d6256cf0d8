// A layer between a program and its MPI library (LD_PRELOAD): a tag above 32,767, the bound that MPI guarantees, ends the job.
#include <mpi.h>
#include <stdio.h>

static void check(int tag, const char *call) {
    if (tag > 32767) {
        fprintf(stderr, "tag bound: %s with tag %d; MPI guarantees 32767\n", call, tag);
        PMPI_Abort(MPI_COMM_WORLD, 77);
    }
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    check(tag, "MPI_Isend");
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Send(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    check(tag, "MPI_Send");
    return PMPI_Send(data, count, type, to, tag, comm);
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
    check(tag, "MPI_Irecv");
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Recv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status) {
    check(tag, "MPI_Recv");
    return PMPI_Recv(data, count, type, from, tag, comm, status);
}

int MPI_Improbe(int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status) {
    check(tag, "MPI_Improbe");
    return PMPI_Improbe(from, tag, comm, flag, message, status);
}

// What a caller may ask for instead of 32,767: the bound of this library, as small as any may be.
int MPI_Comm_get_attr(MPI_Comm comm, int key, void *value, int *flag) {
    static int bound = 32767;
    int result = PMPI_Comm_get_attr(comm, key, value, flag);
    if (key == MPI_TAG_UB && *flag) {
        *(int **)value = &bound;
    }
    return result;
}
