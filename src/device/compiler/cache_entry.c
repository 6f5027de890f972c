#include "device/compiler/cache_entry.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/macros.h"

/* Names the version of the format. */
static const char magic[8] = {'T', 'O', 'W', 'C', 'O', 'D', 'E', '1'};

/* In the host's byte order: entries of hosts with another order have other
 * keys. */
typedef struct header {
    char magic[8];
    uint64_t signature_size;
    uint64_t executable_size;
    uint64_t zero;
    tow_code_key_t key;
    uint8_t sum[TOW_CODE_KEY_SIZE]; /* SHA-256 of signature and executable */
} header_t;

_Static_assert(sizeof(header_t) == TOW_CACHE_ENTRY_HEADER_SIZE, "no padding");

static bool add_part(EVP_MD_CTX *sum, tow_bytes_t part)
{
    const uint64_t size = part.size;
    return EVP_DigestUpdate(sum, &size, sizeof(size)) == 1 &&
           EVP_DigestUpdate(sum, part.data, part.size) == 1;
}

tow_status_t tow_code_key_make(const tow_bytes_t *parts, size_t count,
                               tow_code_key_t *out_key)
{
    EVP_MD_CTX *sum = EVP_MD_CTX_new();
    bool is_well =
        sum != NULL && EVP_DigestInit_ex(sum, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; is_well && i < count; i++)
        is_well = add_part(sum, parts[i]);
    is_well = is_well && EVP_DigestFinal_ex(sum, out_key->bytes, NULL) == 1;
    EVP_MD_CTX_free(sum);
    if (is_well) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "OpenSSL cannot compute a SHA-256");
}

static tow_status_t sum_of(tow_bytes_t signature, tow_bytes_t executable,
                           uint8_t sum[TOW_CODE_KEY_SIZE])
{
    tow_code_key_t key;
    const tow_bytes_t parts[] = {signature, executable};
    TOW_RETURN_IF_ERROR(tow_code_key_make(parts, 2, &key));
    memcpy(sum, key.bytes, sizeof(key.bytes));
    return TOW_OK;
}

tow_status_t tow_cache_entry_header(
    const tow_code_key_t *key, tow_bytes_t signature, tow_bytes_t executable,
    uint8_t out_header[TOW_CACHE_ENTRY_HEADER_SIZE])
{
    header_t header = {.signature_size = signature.size,
                       .executable_size = executable.size,
                       .key = *key};
    memcpy(header.magic, magic, sizeof(magic));
    TOW_RETURN_IF_ERROR(sum_of(signature, executable, header.sum));
    memcpy(out_header, &header, sizeof(header));
    return TOW_OK;
}

static tow_status_t check_header(const header_t *header, size_t file_size,
                                 const tow_code_key_t *key)
{
    if (memcmp(header->magic, magic, sizeof(magic)) != 0 || header->zero != 0)
        return TOW_ERROR(TOW_DATA_LOSS,
                         "it is not a compiled program of Towpath");
    if (memcmp(&header->key, key, sizeof(*key)) != 0)
        return TOW_ERROR(TOW_DATA_LOSS, "its key is for another program, "
                                        "processor or XLA than its name");
    const size_t payload = file_size - sizeof(*header);
    if (header->signature_size > payload ||
        header->executable_size != payload - header->signature_size)
        return TOW_ERROR(TOW_DATA_LOSS,
                         "it has %zu bytes, which its header contradicts",
                         file_size);
    return TOW_OK;
}

tow_status_t tow_cache_entry_parse(tow_bytes_t file, const tow_code_key_t *key,
                                   tow_bytes_t *out_signature,
                                   tow_bytes_t *out_executable)
{
    header_t header;
    uint8_t sum[TOW_CODE_KEY_SIZE];
    if (file.size < sizeof(header))
        return TOW_ERROR(TOW_DATA_LOSS,
                         "it ends after %zu bytes, within the header",
                         file.size);
    memcpy(&header, file.data, sizeof(header));
    TOW_RETURN_IF_ERROR(check_header(&header, file.size, key));
    const uint8_t *payload = (const uint8_t *)file.data + sizeof(header);
    *out_signature = (tow_bytes_t){payload, (size_t)header.signature_size};
    *out_executable = (tow_bytes_t){payload + header.signature_size,
                                    (size_t)header.executable_size};
    TOW_RETURN_IF_ERROR(sum_of(*out_signature, *out_executable, sum));
    if (memcmp(sum, header.sum, sizeof(sum)) == 0) return TOW_OK;
    return TOW_ERROR(TOW_DATA_LOSS, "its bytes do not match their checksum");
}
