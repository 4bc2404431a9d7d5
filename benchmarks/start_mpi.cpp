// A rank that starts, adds one number and leaves; compiled for each MPI.
#include <mpi.h>

#include "start_rank.hpp"

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  float number = 1;
  MPI_Allreduce(MPI_IN_PLACE, &number, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  say_time(number);
  MPI_Finalize();
}
