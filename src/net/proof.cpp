#include "net/proof.hpp"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <memory>
#include <string>

#include "lockstep/error.hpp"

namespace lockstep::net {
namespace {

[[noreturn]] void crypto_failure(const char* what) {
  throw Error(ErrorCode::system, std::string("OpenSSL could not ") + what);
}

}  // namespace

Digest derive_key(std::string_view secret, std::string_view label) {
  std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  if (!kdf) crypto_failure("find HKDF");
  std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(kdf.get()), &EVP_KDF_CTX_free);
  std::string digest_name = "SHA256", key(secret), info(label);
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest_name.data(), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end(),
  };
  Digest derived{};
  if (!context || EVP_KDF_derive(context.get(), derived.data(), derived.size(), parameters) != 1)
    crypto_failure("derive a key");
  OPENSSL_cleanse(key.data(), key.size());
  return derived;
}

Digest hmac_sha256(const Digest& key, std::span<const std::uint8_t> message) {
  Digest digest{};
  unsigned length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(), message.size(), digest.data(),
           &length) == nullptr) {
    crypto_failure("compute an HMAC");
  }
  return digest;
}

bool equal(const Digest& a, const Digest& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Digest random_nonce() {
  Digest nonce{};
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) crypto_failure("make random bytes");
  return nonce;
}

}  // namespace lockstep::net
