#include "net/identity.hpp"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "net/bytes.hpp"

namespace lockstep::net {
namespace {

constexpr char kMagic[] = {'L', 'S', 'I', 'D'};
constexpr std::size_t kProtocolAt = 4, kReleaseAt = 8, kJobAt = 24, kEpochAt = 40, kUseAt = 44, kFromAt = 48,
                      kToAt = 52, kSizeAt = 56, kConnectionAt = 60;
constexpr std::size_t kReleaseBytes = kJobAt - kReleaseAt;

std::string in_hex(const JobTag& tag) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : tag) text += {digits[byte >> 4], digits[byte & 15]};
  return text;
}

std::string version_text(std::uint32_t protocol, const std::string& release) {
  return "Lockstep " + release + " (protocol " + std::to_string(protocol) + ")";
}

Refusal wrong_epoch(const Identity& caller, const Membership& listener, const std::string& who) {
  const std::string epochs =
      "it is in epoch " + std::to_string(caller.epoch) + ", the job is in epoch " + std::to_string(listener.epoch);
  if (caller.epoch > listener.epoch) return {Reason::epoch, who + " came too early: " + epochs};
  return {Reason::epoch, who + " came too late: " + epochs +
                             ". The others went on without it, because it had not answered; it cannot come back."};
}

}  // namespace

IdentityBytes encode(const Identity& identity) {
  IdentityBytes bytes{};
  const std::span<std::byte, kIdentityBytes> to(bytes);
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  put_u32(to.subspan<kProtocolAt, 4>(), identity.protocol);
  std::memcpy(&bytes[kReleaseAt], identity.release.data(), std::min(identity.release.size(), kReleaseBytes));
  std::memcpy(&bytes[kJobAt], identity.job.data(), identity.job.size());
  put_u32(to.subspan<kEpochAt, 4>(), identity.epoch);
  put_u32(to.subspan<kUseAt, 4>(), static_cast<std::uint32_t>(identity.use));
  put_u32(to.subspan<kFromAt, 4>(), identity.from);
  put_u32(to.subspan<kToAt, 4>(), identity.to);
  put_u32(to.subspan<kSizeAt, 4>(), identity.size);
  put_u32(to.subspan<kConnectionAt, 4>(), identity.connection);
  return bytes;
}

std::optional<Identity> decode_identity(std::span<const std::byte> bytes) {
  if (bytes.size() != kIdentityBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return std::nullopt;
  const auto from = bytes.first<kIdentityBytes>();
  Identity identity;
  identity.protocol = get_u32(from.subspan<kProtocolAt, 4>());
  identity.release = printable(from.subspan<kReleaseAt, kReleaseBytes>());
  std::memcpy(identity.job.data(), &bytes[kJobAt], identity.job.size());
  identity.epoch = get_u32(from.subspan<kEpochAt, 4>());
  const std::uint32_t use = get_u32(from.subspan<kUseAt, 4>());
  if (use != static_cast<std::uint32_t>(Use::control) && use != static_cast<std::uint32_t>(Use::data))
    return std::nullopt;
  identity.use = static_cast<Use>(use);
  identity.from = get_u32(from.subspan<kFromAt, 4>());
  identity.to = get_u32(from.subspan<kToAt, 4>());
  identity.size = get_u32(from.subspan<kSizeAt, 4>());
  identity.connection = get_u32(from.subspan<kConnectionAt, 4>());
  return identity;
}

Identity Membership::identity(std::uint32_t to, Use use, std::uint32_t connection) const {
  return {.protocol = protocol,
          .release = release.substr(0, kReleaseBytes),
          .job = job,
          .epoch = epoch,
          .use = use,
          .from = rank,
          .to = to,
          .size = size,
          .connection = connection};
}

JobTag job_tag(std::string_view job_name) {
  std::uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const std::uint8_t*>(job_name.data()), job_name.size(), digest);
  JobTag tag;
  std::memcpy(tag.data(), digest, tag.size());
  return tag;
}

Digest control_key(std::string_view secret, const Identity& identity) {
  return derive_key(secret, "lockstep channel, use " + std::to_string(static_cast<std::uint32_t>(identity.use)) +
                                ", epoch " + std::to_string(identity.epoch) + ", job " + in_hex(identity.job));
}

std::optional<Refusal> judge(const Identity& caller, const Membership& listener, const std::string& from) {
  const std::string who = "rank " + std::to_string(caller.from);
  const std::string here = "rank " + std::to_string(listener.rank);
  if (caller.protocol != listener.protocol || caller.release != listener.release) {
    const std::string on_host = listener.host.empty() ? "" : " on " + listener.host;
    const std::string at_address = from.empty() ? "" : " at " + from.substr(0, from.rfind(':'));
    return Refusal{Reason::version, "incompatible versions: " + here + on_host + " has " +
                                        version_text(listener.protocol, listener.release) + ", " + who + at_address +
                                        " has " + version_text(caller.protocol, caller.release) +
                                        ". Install the same version everywhere."};
  }
  if (caller.job != listener.job) {
    return Refusal{Reason::job, who + " belongs to another job that has the same secret. Give every job its own."};
  }
  if (caller.epoch != listener.epoch) return wrong_epoch(caller, listener, who);
  if (caller.size != listener.size || caller.to != listener.rank || caller.from >= caller.size ||
      caller.from == caller.to) {
    return Refusal{Reason::world, here + " of " + std::to_string(listener.size) + " was called by " + who + " of " +
                                      std::to_string(caller.size) + " as rank " + std::to_string(caller.to) +
                                      ". Start all ranks of a job with the same sizes and different ranks."};
  }
  return std::nullopt;
}

}  // namespace lockstep::net
