// How a rank calls another: the other side of a Gate.
#pragma once

#include <memory>

#include "net/greeting.hpp"
#include "net/identity.hpp"
#include "net/tls.hpp"

namespace lockstep::net {

struct ControlChannel {
  std::unique_ptr<TlsStream> stream;
  Digest data_key = {};  ///< for the data connections of this pair
};

/// Who is called, and until when. A connection that is lost before the other side has proved the key, as may happen
/// while strangers flood it, is tried again.
struct Call {
  std::uint32_t rank = 0;
  Address address;
  Clock::time_point deadline;
  /// After which a host that has not answered at all counts as one that does not; by default the deadline alone does.
  Clock::duration first_answer = std::chrono::hours(1);
};

/// Throws Refused (in the other side's words), HandshakeFailed when it does not hold the key, NobodyListens,
/// Error(unavailable) when there is no way to the host, ConnectionLost when it hung up until the deadline, and
/// Error(timeout) when it did not answer.
ControlChannel call_control(const TlsContext& tls, const Membership& self, const Call& call);

/// A connection for data, authenticated with the key of the control channel to that rank.
std::unique_ptr<Stream> call_data(const Membership& self, const Call& call, std::uint32_t connection,
                                  const Digest& data_key);

/// The same, encrypted.
std::unique_ptr<TlsStream> call_encrypted_data(const TlsContext& tls, const Membership& self, const Call& call,
                                               std::uint32_t connection, const Digest& data_key);

}  // namespace lockstep::net
