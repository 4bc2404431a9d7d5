// A rank of benchmarks/wire.py: worker_wire KIND RANK SIZE LOCAL_RANK LOCAL_SIZE ADDRESS.
//
// KIND is lockstep, encrypted (the same with encrypt_data), or raw: two ranks that stream their tensors to each other
// through one socket, both ways at once, without ever sleeping. That is what the same bytes cost without an engine; the
// sum is made afterwards, outside the measured time, unless it is tiny. ADDRESS is where rank 0 listens.
#include <poll.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.hpp"
#include "net/socket.hpp"
#include "worker.hpp"

namespace {

using lockstep::net::Address;
using lockstep::net::Clock;
using lockstep::net::Listener;
using lockstep::net::Socket;

constexpr auto kStartLimit = std::chrono::seconds(30);

struct Rank {
  std::string kind;
  int rank = 0;
  int size = 0;
  int local_rank = 0;
  int local_size = 0;
  std::string address;
};

class OneTensor : public bench::Contender {
 public:
  explicit OneTensor(int rank) : rank_(rank) {}

  std::vector<bench::Buffer> prepare(std::size_t elements, bench::DType dtype) override {
    if (dtype != bench::DType::f32) throw std::runtime_error("only f32 is compared with peers");
    elements_ = elements;
    data_ = memory_.resize(elements * sizeof(float));
    return {{data_, rank_}};
  }

 protected:
  std::span<std::byte> bytes() const { return {data_, elements_ * sizeof(float)}; }
  std::span<float> values() const { return {reinterpret_cast<float*>(data_), elements_}; }

 private:
  int rank_;
  std::size_t elements_ = 0;
  bench::OwnMemory memory_;
  std::byte* data_ = nullptr;
};

class LockstepRank : public OneTensor {
 public:
  LockstepRank(lockstep::Engine& engine, int rank) : OneTensor(rank), engine_(engine) {}

  void all_reduce() override {
    const lockstep::TensorView view{.data = values().data(), .shape = {static_cast<std::int64_t>(values().size())}};
    engine_.all_reduce(view, view);
  }

 private:
  lockstep::Engine& engine_;
};

class RawRank : public OneTensor {
 public:
  RawRank(Socket socket, int rank) : OneTensor(rank), socket_(std::move(socket)) {}

  std::vector<bench::Buffer> prepare(std::size_t elements, bench::DType dtype) override {
    auto buffers = OneTensor::prepare(elements, dtype);
    arrived_.assign(elements, 0.0F);
    return buffers;
  }

  void all_reduce() override {
    const std::span<const std::byte> out = bytes();
    const std::span<std::byte> in = std::as_writable_bytes(std::span(arrived_));
    for (std::size_t sent = 0, received = 0; sent < out.size() || received < in.size();) {
      if (sent < out.size()) sent += socket_.write_some(out.subspan(sent));
      if (received < in.size()) received += socket_.read_some(in.subspan(received));
    }
    if (is_tiny()) add();
  }

  void complete() override {
    if (!is_tiny()) add();
  }

 private:
  bool is_tiny() const { return arrived_.size() <= 16; }

  void add() {
    for (std::size_t i = 0; i < arrived_.size(); ++i) values()[i] += arrived_[i];
  }

  Socket socket_;
  std::vector<float> arrived_;
};

Socket raw_socket(const Rank& self) {
  const auto deadline = Clock::now() + kStartLimit;
  const Address address = Address::resolve(self.address);
  if (self.rank == 0) {
    Listener listener(address);
    listener.open();
    std::optional<Socket> socket;
    while (!socket && lockstep::net::wait_for(listener.fd(), POLLIN, deadline)) socket = listener.accept();
    if (!socket) throw std::runtime_error("the other rank has not called");
    return std::move(*socket);
  }
  for (;;) {  // until the other listens
    try {
      return Socket::connect(address, deadline);
    } catch (const lockstep::Error&) {
      if (Clock::now() > deadline) throw;
      ::poll(nullptr, 0, 10);
    }
  }
}

std::string secret() {
  std::ifstream file(std::string(std::getenv("BENCH_FOLDER")) + "/secret", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

lockstep::Options options_of(const Rank& self) {
  lockstep::Options options;
  options.rank = self.rank;
  options.size = self.size;
  options.local_rank = self.local_rank;
  options.local_size = self.local_size;
  options.job = "wire";
  options.secret = secret();
  options.transport = self.local_size == self.size ? "tcp" : "";
  options.meeting = self.address;
  options.encrypt_data = self.kind == "encrypted";
  return options;
}

void work(int argc, char** argv) {
  if (argc != 7) throw std::invalid_argument("usage: worker_wire KIND RANK SIZE LOCAL_RANK LOCAL_SIZE ADDRESS");
  const Rank self{.kind = argv[1],
                  .rank = std::stoi(argv[2]),
                  .size = std::stoi(argv[3]),
                  .local_rank = std::stoi(argv[4]),
                  .local_size = std::stoi(argv[5]),
                  .address = argv[6]};
  if (self.kind == "raw") {
    RawRank contender(raw_socket(self), self.rank);
    bench::serve(contender, {self.rank, self.size, self.size, "sockets"});
    return;
  }
  lockstep::Engine engine(options_of(self));
  LockstepRank contender(engine, self.rank);
  bench::serve(contender, {self.rank, self.size, self.size, std::string("Lockstep ") + lockstep::version()});
  engine.barrier();  // nobody leaves while another still works
}

}  // namespace

int main(int argc, char** argv) { return bench::guarded_main("worker_wire", work, argc, argv); }
