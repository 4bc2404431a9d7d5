#include "transport/tcp/near_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/fd.hpp"
#include "base/process_memory.hpp"
#include "net/proof.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"  // fences are for other processes here, of which that sanitizer knows nothing
#endif

namespace lockstep::transport::tcp {
namespace {

Reach read_from(std::uint64_t process, std::uint64_t address, std::span<std::byte> to) {
  return read_process(static_cast<pid_t>(process), address, to);
}

const std::uint64_t& token_word() {
  static const std::uint64_t token = [] {
    std::uint64_t number = 0;
    std::memcpy(&number, net::random_nonce().data(), sizeof number);
    return number;
  }();
  return token;
}

}  // namespace

std::uint64_t token_of_process() { return token_word(); }
std::uint64_t probe_of_process() { return reinterpret_cast<std::uint64_t>(&token_word()); }

bool is_in_reach(const Hello& rank) {
  std::uint64_t word = 0;
  const auto read = read_from(rank.process, rank.probe, std::as_writable_bytes(std::span(&word, 1)));
  return read == Reach::done && word == rank.token;
}

bool can_be_read(std::span<const std::byte> data) {
  const auto process = static_cast<std::uint64_t>(::getpid());
  const auto first = reinterpret_cast<std::uint64_t>(data.data());
  std::byte there{};
  return read_from(process, first, {&there, 1}) == Reach::done &&
         read_from(process, first + data.size() - 1, {&there, 1}) == Reach::done;
}

// A message moves once at most, so the second look at the slip tells the last word.
bool fetch(const Hello& sender, const Whereabouts& where, std::span<std::byte> to) {
  std::array<std::uint64_t, 2> slip{};
  static_assert(sizeof slip == sizeof(Lendings::Slip));
  std::uint64_t data = where.data;
  for (int turn = 0; turn < 2; ++turn) {
    const Reach read = read_from(sender.process, data, to);
    std::atomic_thread_fence(std::memory_order_acquire);  // the slip is read after the data
    const Reach looked = read_from(sender.process, where.slip, std::as_writable_bytes(std::span(slip)));
    if (read == Reach::gone || looked == Reach::gone) return false;
    if (looked == Reach::refused) throw_errno("read the memory of another rank of this host");
    if (looked == Reach::no_memory) return false;  // its process is just ending
    if (slip[0] != sender.token || slip[1] == 0) return false;
    if (slip[1] != data) {
      data = slip[1];
      continue;
    }
    if (read == Reach::done) return true;
    errno = EFAULT;
    throw_errno("read a tensor in the memory of another rank of this host");
  }
  return false;
}

Lendings::Slip::~Slip() {
  data.store(0, std::memory_order_relaxed);
  token.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // before the memory is used for something else
}

Whereabouts Lendings::lend(int to, std::uint64_t operation, std::uint32_t part, std::span<const std::byte> data) {
  const std::uint64_t number = next_++;
  auto slip = std::make_unique<Slip>();
  const auto address = reinterpret_cast<std::uint64_t>(data.data());
  slip->data.store(address, std::memory_order_release);
  const Whereabouts where{.operation = operation,
                          .part = part,
                          .total = data.size(),
                          .data = address,
                          .slip = reinterpret_cast<std::uint64_t>(slip.get()),
                          .number = number};
  lendings_.emplace(number,
                    Lending{.to = to, .operation = operation, .data = data, .copy = {}, .slip = std::move(slip)});
  return where;
}

bool Lendings::has(std::uint64_t operation) const {
  return std::any_of(lendings_.begin(), lendings_.end(),
                     [&](const auto& one) { return one.second.operation == operation; });
}

void Lendings::note_fetched(int by, std::uint64_t number) {
  const auto found = lendings_.find(number);
  if (found != lendings_.end() && found->second.to == by) lendings_.erase(found);
}

void Lendings::give_back(std::uint64_t operation) {
  for (auto& [number, lending] : lendings_) {
    if (lending.operation != operation || lending.copy.size() != 0) continue;
    lending.copy = SpareMemory(lending.data.size());
    std::copy(lending.data.begin(), lending.data.end(), lending.copy.data());
    lending.slip->data.store(reinterpret_cast<std::uint64_t>(lending.copy.data()), std::memory_order_release);
  }
  std::atomic_thread_fence(std::memory_order_release);  // the slips are written before the data may change
}

void Lendings::abandon(std::uint64_t operation) {
  std::erase_if(lendings_, [&](const auto& one) { return one.second.operation == operation; });
}

void Lendings::forget(int peer) {
  std::erase_if(lendings_, [&](const auto& one) { return one.second.to == peer; });
}

}  // namespace lockstep::transport::tcp
