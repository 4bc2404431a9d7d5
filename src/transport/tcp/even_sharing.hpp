// How connections that lead into one port share it: evenly, because an operation is as slow as its slowest connection.
//
// Connections under BBR keep the part of a port that they have once found, and need tens of round trips to take up what
// another leaves. Those under CUBIC even out while an operation lasts. So where the system's choice is BBR, and several
// ranks send into one port, data connections ask for CUBIC, or for Reno where the system does not allow that. It takes
// every lost packet for a full queue, which BBR does not: where packets are lost otherwise, a connection goes back to
// the system's choice, for good.
//
// The same is asked for between ranks of one host. There BBR waits for a timer before it sends what nothing but the
// receiver can hold up.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::transport::tcp {

class EvenSharing {
 public:
  /// Of a socket that is connected. Without effect where the system does not allow it.
  void begin(int fd);

  /// To be called now and then. True when the connection has just gone back.
  bool look(int fd);

  /// Whether so much had to be sent again that it was not for full queues.
  static bool is_lossy(std::uint64_t bytes_sent, std::uint64_t bytes_sent_again);

 private:
  std::string choice_of_system_;  // while the connection has another
};

}  // namespace lockstep::transport::tcp
