#include "ir/sharding.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

tow_sharding_t tow_sharding_replicated(uint32_t rank, size_t device_count)
{
    TOW_ASSERT(rank <= TOW_RANK_MAX && device_count <= UINT32_MAX);
    tow_sharding_t sharding = {.rank = rank,
                               .replicas = (uint32_t)device_count};
    for (uint32_t i = 0; i < rank; i++)
        sharding.parts[i] = 1;
    return sharding;
}

/* -- Equality -------------------------------------------------------------- */

static bool same_numbers(const uint32_t *a, const uint32_t *b, size_t count)
{
    return memcmp(a, b, count * sizeof(*a)) == 0;
}

static bool same_mesh(const tow_sharding_t *a, const tow_sharding_t *b)
{
    return a->mesh_rank == b->mesh_rank &&
           same_numbers(a->mesh_dims, b->mesh_dims, a->mesh_rank) &&
           same_numbers(a->mesh_axes, b->mesh_axes, a->mesh_rank);
}

static size_t count_devices(const tow_sharding_t *sharding)
{
    size_t count = sharding->replicas;
    for (uint32_t i = 0; i < sharding->rank; i++)
        count *= sharding->parts[i];
    return count;
}

/* Different meshes may be equal. Unequal ones mostly differ early. */
tow_sharding_t tow_sharding_by_shard(uint32_t rank, size_t device_count)
{
    tow_sharding_t sharding = tow_sharding_replicated(rank, device_count);
    if (rank == 0) return sharding;
    sharding.parts[0] = (uint32_t)device_count;
    sharding.replicas = 1;
    return sharding;
}

bool tow_sharding_equal(const tow_sharding_t *a, const tow_sharding_t *b)
{
    uint32_t index_a[TOW_RANK_MAX], index_b[TOW_RANK_MAX];
    if (!tow_sharding_is_known(a) || !tow_sharding_is_known(b)) return false;
    if (a->rank != b->rank || a->replicas != b->replicas ||
        !same_numbers(a->parts, b->parts, a->rank))
        return false;
    if (same_mesh(a, b)) return true;
    const size_t count = count_devices(a);
    for (size_t device = 0; device < count; device++) {
        tow_sharding_part_of(a, device, index_a);
        tow_sharding_part_of(b, device, index_b);
        if (!same_numbers(index_a, index_b, a->rank)) return false;
    }
    return true;
}

/* -- Checks ---------------------------------------------------------------- */

/* Multiplies `*product`; false if it exceeds any number of devices. */
static bool multiply(uint64_t *product, uint32_t factor)
{
    *product *= factor;
    return *product <= UINT32_MAX;
}

static tow_status_t check_parts(const tow_sharding_t *sharding,
                                size_t device_count)
{
    char text[TOW_SHARDING_TEXT_MAX];
    uint64_t product = sharding->replicas;
    bool fits = true;
    for (uint32_t i = 0; i < sharding->rank && fits; i++) {
        if (sharding->parts[i] == 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "sharding %s has no parts along dimension %u",
                             tow_sharding_format(sharding, text), i);
        fits = multiply(&product, sharding->parts[i]);
    }
    if (fits && product == device_count) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "sharding %s is not for %zu devices: its parts and "
                     "replicas must multiply to that",
                     tow_sharding_format(sharding, text), device_count);
}

static tow_status_t check_mesh(const tow_sharding_t *sharding,
                               size_t device_count)
{
    char text[TOW_SHARDING_TEXT_MAX];
    uint64_t product = 1;
    uint32_t seen = 0;
    bool fits = true;
    if (sharding->mesh_rank == 0) return TOW_OK;
    for (uint32_t i = 0; i < sharding->mesh_rank && fits; i++) {
        fits = multiply(&product, sharding->mesh_dims[i]);
        if (sharding->mesh_axes[i] < sharding->mesh_rank)
            seen |= 1u << sharding->mesh_axes[i];
    }
    if (!fits || product != device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the mesh of sharding %s is not of %zu devices",
                         tow_sharding_format(sharding, text), device_count);
    if (seen != (1u << sharding->mesh_rank) - 1)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the axes of sharding %s must be the numbers below "
                         "%u, each once",
                         tow_sharding_format(sharding, text),
                         sharding->mesh_rank);
    return TOW_OK;
}

tow_status_t tow_sharding_check(const tow_sharding_t *sharding,
                                size_t device_count)
{
    if (!tow_sharding_is_known(sharding))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the sharding is not known");
    if (sharding->rank > TOW_RANK_MAX ||
        sharding->mesh_rank > TOW_MESH_RANK_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a sharding of rank %u over a mesh of rank %u; the "
                         "limits are %d and %u",
                         sharding->rank, sharding->mesh_rank, TOW_RANK_MAX,
                         TOW_MESH_RANK_MAX);
    TOW_RETURN_IF_ERROR(check_parts(sharding, device_count));
    return check_mesh(sharding, device_count);
}

/* -- Shapes ---------------------------------------------------------------- */

static tow_status_t check_rank(const tow_sharding_t *sharding,
                               const tow_shape_t *shape)
{
    char texts[2][TOW_SHAPE_TEXT_MAX];
    if (sharding->rank == shape->rank) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "sharding %s is of rank %u, and %s of rank %u",
                     tow_sharding_format(sharding, texts[0]), sharding->rank,
                     tow_shape_format(shape, texts[1]), shape->rank);
}

tow_status_t tow_sharding_whole(const tow_sharding_t *sharding,
                                const tow_shape_t *shard,
                                tow_shape_t *out_whole)
{
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(check_rank(sharding, shard));
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shard, &bytes));
    *out_whole = *shard;
    for (uint32_t i = 0; i < shard->rank; i++)
        if (__builtin_mul_overflow(shard->dims[i], (int64_t)sharding->parts[i],
                                   &out_whole->dims[i]))
            return TOW_ERROR(TOW_OUT_OF_RANGE,
                             "%u parts of %" PRId64
                             " along dimension %u are more than 2^63 - 1",
                             sharding->parts[i], shard->dims[i], i);
    return tow_shape_bytes(out_whole, &bytes);
}

tow_status_t tow_sharding_shard(const tow_sharding_t *sharding,
                                const tow_shape_t *whole,
                                tow_shape_t *out_shard)
{
    char texts[2][TOW_SHAPE_TEXT_MAX];
    TOW_RETURN_IF_ERROR(check_rank(sharding, whole));
    *out_shard = *whole;
    for (uint32_t i = 0; i < whole->rank; i++) {
        if (whole->dims[i] % sharding->parts[i] != 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "sharding %s does not divide dimension %u of %s",
                             tow_sharding_format(sharding, texts[0]), i,
                             tow_shape_format(whole, texts[1]));
        out_shard->dims[i] = whole->dims[i] / sharding->parts[i];
    }
    return TOW_OK;
}

/* -- Parts and devices ----------------------------------------------------- */

/* The row-major coordinates of `number` in a mesh. */
static void unravel(size_t number, const uint32_t *dims, uint32_t rank,
                    uint32_t *out_digits)
{
    for (uint32_t i = rank; i-- > 0;) {
        out_digits[i] = (uint32_t)(number % dims[i]);
        number /= dims[i];
    }
}

uint32_t tow_sharding_part_of(const tow_sharding_t *sharding, size_t device,
                              uint32_t out_index[TOW_RANK_MAX])
{
    uint32_t digits[TOW_MESH_RANK_MAX];
    size_t position = device;
    if (sharding->mesh_rank > 0) {
        unravel(device, sharding->mesh_dims, sharding->mesh_rank, digits);
        position = 0;
        for (uint32_t i = 0; i < sharding->mesh_rank; i++) {
            const uint32_t axis = sharding->mesh_axes[i];
            position = position * sharding->mesh_dims[axis] + digits[axis];
        }
    }
    unravel(position / sharding->replicas, sharding->parts, sharding->rank,
            out_index);
    return (uint32_t)(position % sharding->replicas);
}

size_t tow_sharding_device_of(const tow_sharding_t *sharding,
                              const uint32_t *index, uint32_t replica)
{
    uint32_t digits[TOW_MESH_RANK_MAX];
    size_t position = 0;
    for (uint32_t i = 0; i < sharding->rank; i++)
        position = position * sharding->parts[i] + index[i];
    position = position * sharding->replicas + replica;
    if (sharding->mesh_rank == 0) return position;
    for (uint32_t i = sharding->mesh_rank; i-- > 0;) {
        const uint32_t axis = sharding->mesh_axes[i];
        digits[axis] = (uint32_t)(position % sharding->mesh_dims[axis]);
        position /= sharding->mesh_dims[axis];
    }
    size_t device = 0;
    for (uint32_t i = 0; i < sharding->mesh_rank; i++)
        device = device * sharding->mesh_dims[i] + digits[i];
    return device;
}

/* -- Text ------------------------------------------------------------------ */

static size_t format_numbers(char *text, size_t used, const uint32_t *numbers,
                             uint32_t count, char between)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) text[used++] = between;
        used += (size_t)snprintf(text + used, TOW_SHARDING_TEXT_MAX - used,
                                 "%u", numbers[i]);
    }
    return used;
}

/* Room for 64 numbers of 10 characters, with separators. */
const char *tow_sharding_format(const tow_sharding_t *sharding,
                                char text[TOW_SHARDING_TEXT_MAX])
{
    if (!tow_sharding_is_known(sharding)) return memcpy(text, "?", sizeof("?"));
    const uint32_t rank =
        sharding->rank <= TOW_RANK_MAX ? sharding->rank : TOW_RANK_MAX;
    const uint32_t mesh_rank = sharding->mesh_rank <= TOW_MESH_RANK_MAX
                                   ? sharding->mesh_rank
                                   : TOW_MESH_RANK_MAX;
    size_t used = format_numbers(text, 0, sharding->parts, rank, 'x');
    text[used] = '\0';
    if (sharding->replicas > 1 || rank == 0)
        used += (size_t)snprintf(text + used, TOW_SHARDING_TEXT_MAX - used,
                                 "*%u", sharding->replicas);
    if (mesh_rank == 0) return text;
    used +=
        (size_t)snprintf(text + used, TOW_SHARDING_TEXT_MAX - used, " mesh ");
    used = format_numbers(text, used, sharding->mesh_dims, mesh_rank, 'x');
    used +=
        (size_t)snprintf(text + used, TOW_SHARDING_TEXT_MAX - used, " axes ");
    used = format_numbers(text, used, sharding->mesh_axes, mesh_rank, ',');
    text[used] = '\0';
    return text;
}

typedef struct reader {
    const char *at;
    const char *end;
} reader_t;

static bool take_text(reader_t *reader, const char *wanted)
{
    const size_t length = strlen(wanted);
    if ((size_t)(reader->end - reader->at) < length ||
        memcmp(reader->at, wanted, length) != 0)
        return false;
    reader->at += length;
    return true;
}

static bool take_number(reader_t *reader, uint32_t *out_number)
{
    uint64_t number = 0;
    const char *start = reader->at;
    for (; reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9';
         reader->at++) {
        number = number * 10 + (uint64_t)(*reader->at - '0');
        if (number > UINT32_MAX) return false;
    }
    *out_number = (uint32_t)number;
    return reader->at > start;
}

static bool take_numbers(reader_t *reader, const char *between, uint32_t max,
                         uint32_t *numbers, uint32_t *out_count)
{
    *out_count = 0;
    do {
        if (*out_count == max || !take_number(reader, &numbers[*out_count]))
            return false;
        ++*out_count;
    } while (take_text(reader, between));
    return true;
}

static bool take_mesh(reader_t *reader, tow_sharding_t *sharding)
{
    uint32_t count;
    return take_numbers(reader, "x", TOW_MESH_RANK_MAX, sharding->mesh_dims,
                        &sharding->mesh_rank) &&
           take_text(reader, " axes ") &&
           take_numbers(reader, ",", TOW_MESH_RANK_MAX, sharding->mesh_axes,
                        &count) &&
           count == sharding->mesh_rank;
}

static bool take_sharding(reader_t *reader, tow_sharding_t *sharding)
{
    if (take_text(reader, "?")) return true;
    sharding->replicas = 1;
    const bool has_replicas = take_text(reader, "*");
    if (!has_replicas && !take_numbers(reader, "x", TOW_RANK_MAX,
                                       sharding->parts, &sharding->rank))
        return false;
    if ((has_replicas || take_text(reader, "*")) &&
        !take_number(reader, &sharding->replicas))
        return false;
    if (sharding->replicas == 0) return false;
    return !take_text(reader, " mesh ") || take_mesh(reader, sharding);
}

tow_status_t tow_sharding_parse(const char *text, size_t size,
                                tow_sharding_t *out_sharding)
{
    reader_t reader = {.at = text, .end = text + size};
    *out_sharding = (tow_sharding_t){0};
    if (take_sharding(&reader, out_sharding) && reader.at == reader.end)
        return TOW_OK;
    *out_sharding = (tow_sharding_t){0};
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "'%.*s' is not a sharding; write it as 2x4, 2x4*2 with "
                     "two replicas, or 2x4 mesh 4x2 axes 1,0",
                     (int)(size < 64 ? size : 64), text);
}
