// An MPI as a contender. The same source is compiled against Open MPI and against MPICH; settings come from outside.
#include <mpi.h>

#include <stdexcept>
#include <string>

#include "worker.hpp"

namespace {

class MpiContender : public bench::Contender {
 public:
  explicit MpiContender(int rank) : rank_(rank) {}

  std::vector<bench::Buffer> prepare(std::size_t elements, bench::DType dtype) override {
    if (dtype != bench::DType::f32) throw std::runtime_error("only f32 is compared with peers");
    elements_ = static_cast<int>(elements);
    data_ = memory_.resize(elements * sizeof(float));
    return {{data_, rank_}};
  }

  void all_reduce() override {
    // An error ends the program: that is MPI's default.
    MPI_Allreduce(MPI_IN_PLACE, data_, elements_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

 private:
  int rank_;
  int elements_ = 0;
  bench::OwnMemory memory_;
  std::byte* data_ = nullptr;
};

std::string version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text = text.substr(0, text.find_first_of(",\n"));  // the rest says who built it, and where
  for (char& c : text) {
    if (c == '\t') c = ' ';
  }
  return text;
}

void work(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  {
    MpiContender contender(rank);
    bench::serve(contender, {rank, size, size, version()});
  }
  MPI_Finalize();
}

}  // namespace

int main(int argc, char** argv) { return bench::guarded_main("worker_mpi", work, argc, argv); }
