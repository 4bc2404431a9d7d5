// Everything that a stranger can send to a gate, through TLS and all.
#include "net/knock.hpp"

#include <sys/socket.h>

#include "target.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  static const net::House house{.self = {.secret = std::string(32, 's'),
                                         .job = net::job_tag("j"),
                                         .epoch = 3,
                                         .rank = 0,
                                         .size = 4,
                                         .release = "1.0"},
                                .data_key = [](const net::Identity&) { return net::random_nonce(); }};
  int pair[2];
  must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "no socket to be had");
  net::Socket stranger{Fd(pair[0])};
  net::Knock knock(house, net::Socket(Fd(pair[1])), net::Clock::time_point::max());
  // In two pieces, so that what has come is sometimes not the whole.
  const auto bytes = bytes_of(data, size);
  for (const auto piece : {bytes.first(size / 2), bytes.subspan(size / 2)}) {
    if (!piece.empty()) must(stranger.write_some(piece) == piece.size(), "a socket holds less than an input");
    const auto outcome = knock.step();
    if (std::holds_alternative<net::Stranger>(outcome)) return 0;
    must(std::holds_alternative<net::Knock::Waiting>(outcome), "somebody without the key was let in");
  }
  return 0;
}
