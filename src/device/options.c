#include "device/options.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/proto.h"

/* Field numbers in xla/pjrt/proto/compile_options.proto, xla.proto and
 * xla_data.proto. All that are written are below 32, and those below 16 take
 * one byte. */
enum {
    OPTIONS_BUILD = 3,
    OPTIONS_OVERRIDES = 7, /* a map */
    BUILD_DEVICE_ORDINAL = 1,
    BUILD_DEBUG = 3,
    BUILD_REPLICA_COUNT = 4,
    BUILD_PARTITION_COUNT = 5,
    BUILD_USE_SPMD = 6,
    BUILD_ASSIGNMENT = 9,
    BUILD_USE_SHARDY = 19,
    ASSIGNMENT_REPLICA_COUNT = 1,
    ASSIGNMENT_COMPUTATION_COUNT = 2,
    ASSIGNMENT_COMPUTATIONS = 3,
    COMPUTATION_REPLICA_DEVICES = 1,
    OVERRIDE_KEY = 1,
    OVERRIDE_VALUE = 2,
    OVERRIDE_TEXT = 1,           /* of the value, which is one of several */
    DEBUG_LATENCY_OPTIONS = 357, /* a map */
    DEBUG_EXTRA_OPTIONS = 500,   /* a map */
};

static size_t replicas_of(const tow_assignment_t *assignment)
{
    return assignment->replica_count != 0 ? assignment->replica_count : 1;
}

static size_t partitions_of(const tow_assignment_t *assignment)
{
    return assignment->partition_count != 0 ? assignment->partition_count : 1;
}

static uint64_t id_of(const tow_assignment_t *assignment, size_t replica,
                      size_t partition)
{
    return (uint64_t)
        assignment->device_ids[replica * partitions_of(assignment) + partition];
}

/* -- Sizes ------------------------------------------------------------------ */

static size_t length_size(size_t inside)
{
    return 1 + proto_varint_size(inside) + inside;
}

static size_t number_size(uint64_t value)
{
    return 1 + proto_varint_size(value);
}

static size_t column_size(const tow_assignment_t *assignment, size_t partition)
{
    size_t size = 0;
    for (size_t r = 0; r < replicas_of(assignment); r++)
        size += number_size(id_of(assignment, r, partition));
    return size;
}

static size_t assignment_size(const tow_assignment_t *assignment)
{
    size_t size = number_size(replicas_of(assignment)) +
                  number_size(partitions_of(assignment));
    for (size_t p = 0; p < partitions_of(assignment); p++)
        size += length_size(column_size(assignment, p));
    return size;
}

/* The fields of the build options that say where a program runs. */
static size_t place_size(const tow_assignment_t *assignment)
{
    size_t size = number_size(UINT64_MAX) +
                  number_size(replicas_of(assignment)) +
                  number_size(partitions_of(assignment));
    if (assignment->device_ids != NULL)
        size += length_size(assignment_size(assignment));
    return size;
}

/* -- Writing ---------------------------------------------------------------- */

static uint8_t *write_assignment(uint8_t *at,
                                 const tow_assignment_t *assignment)
{
    at = proto_write_number(at, ASSIGNMENT_REPLICA_COUNT,
                            replicas_of(assignment));
    at = proto_write_number(at, ASSIGNMENT_COMPUTATION_COUNT,
                            partitions_of(assignment));
    for (size_t p = 0; p < partitions_of(assignment); p++) {
        at = proto_write_length(at, ASSIGNMENT_COMPUTATIONS,
                                column_size(assignment, p));
        for (size_t r = 0; r < replicas_of(assignment); r++)
            at = proto_write_number(at, COMPUTATION_REPLICA_DEVICES,
                                    id_of(assignment, r, p));
    }
    return at;
}

static uint8_t *write_place(uint8_t *at, const tow_assignment_t *assignment)
{
    at = proto_write_number(at, BUILD_DEVICE_ORDINAL, UINT64_MAX); /* none */
    at = proto_write_number(at, BUILD_REPLICA_COUNT, replicas_of(assignment));
    at = proto_write_number(at, BUILD_PARTITION_COUNT,
                            partitions_of(assignment));
    if (assignment->device_ids == NULL) return at;
    at = proto_write_length(at, BUILD_ASSIGNMENT, assignment_size(assignment));
    return write_assignment(at, assignment);
}

/* -- Packing ---------------------------------------------------------------- */

static void check_assignment(const tow_assignment_t *assignment)
{
    TOW_ASSERT(replicas_of(assignment) <= TOW_ASSIGNED_DEVICE_COUNT_MAX);
    TOW_ASSERT(partitions_of(assignment) <=
               TOW_ASSIGNED_DEVICE_COUNT_MAX / replicas_of(assignment));
}

static size_t build_size(const tow_compile_options_t *options)
{
    size_t size = place_size(&options->assignment);
    if (partitions_of(&options->assignment) > 1) size += number_size(1);
    if (options->partitioner == TOW_PARTITIONER_SHARDY)
        size += proto_varint_size(BUILD_USE_SHARDY << 3) + 1;
    return size;
}

size_t tow_compile_options_size(const tow_compile_options_t *options)
{
    check_assignment(&options->assignment);
    return length_size(build_size(options));
}

size_t tow_compile_options_pack(const tow_compile_options_t *options,
                                uint8_t *bytes)
{
    check_assignment(&options->assignment);
    uint8_t *at = proto_write_length(bytes, OPTIONS_BUILD, build_size(options));
    at = write_place(at, &options->assignment);
    if (partitions_of(&options->assignment) > 1)
        at = proto_write_number(at, BUILD_USE_SPMD, 1);
    if (options->partitioner == TOW_PARTITIONER_SHARDY)
        at = proto_write_number(at, BUILD_USE_SHARDY, 1);
    return (size_t)(at - bytes);
}

/* -- Reassigning ------------------------------------------------------------ */

static bool is_place(const proto_field_t *field)
{
    return field->number == BUILD_DEVICE_ORDINAL ||
           field->number == BUILD_REPLICA_COUNT ||
           field->number == BUILD_PARTITION_COUNT ||
           field->number == BUILD_ASSIGNMENT;
}

static bool is_build(const proto_field_t *field)
{
    return field->number == OPTIONS_BUILD && field->kind == PROTO_BYTES;
}

/* Copies the fields of a message that `is_left_out` does not name, or only
 * counts their bytes if `at` is NULL. False: not a message. */
static bool copy_fields(tow_bytes_t message,
                        bool (*is_left_out)(const proto_field_t *field),
                        uint8_t *at, size_t *out_size)
{
    size_t size = 0;
    while (message.size > 0) {
        const uint8_t *start = message.data;
        proto_field_t field;
        if (!proto_read_field(&message, &field)) return false;
        if (is_left_out(&field)) continue;
        const size_t count = (size_t)((const uint8_t *)message.data - start);
        if (at != NULL) memcpy(at + size, start, count);
        size += count;
    }
    *out_size = size;
    return true;
}

/* The same with the build options, which may be in several fields: then the
 * message is their concatenation. */
static bool copy_builds(tow_bytes_t options, uint8_t *at, size_t *out_size)
{
    size_t size = 0;
    while (options.size > 0) {
        proto_field_t field;
        size_t count = 0;
        if (!proto_read_field(&options, &field)) return false;
        if (!is_build(&field)) continue;
        if (!copy_fields(field.bytes, is_place, at != NULL ? at + size : NULL,
                         &count))
            return false;
        size += count;
    }
    *out_size = size;
    return true;
}

/* -- Maps ------------------------------------------------------------------- */

/* A map is a sequence of fields of one number, in the order of the writer's
 * memory, which differs between processes. Sorts them, so that equal options
 * are equal bytes. */

typedef bool (*is_map_t)(uint32_t number);

static bool is_map_of_options(uint32_t number)
{
    return number == OPTIONS_OVERRIDES;
}

static bool is_map_of_debug(uint32_t number)
{
    return number == DEBUG_LATENCY_OPTIONS || number == DEBUG_EXTRA_OPTIONS;
}

static int compare_fields(const void *a, const void *b)
{
    const tow_bytes_t *left = a, *right = b;
    const size_t common = left->size < right->size ? left->size : right->size;
    const int order = memcmp(left->data, right->data, common);
    return order != 0 ? order
                      : (left->size > right->size) - (left->size < right->size);
}

/* The entries from `start` on: fields of bytes that have the same number. A
 * field of another kind ends the run, or sorting would move it to the front and
 * a second sort would begin behind it. */
static size_t read_run(uint8_t *start, const uint8_t *end,
                       tow_bytes_t fields[TOW_OPTIONS_MAP_COUNT_MAX])
{
    tow_bytes_t message = {start, (size_t)(end - start)};
    uint32_t number = 0;
    size_t count = 0;
    while (message.size > 0 && count < TOW_OPTIONS_MAP_COUNT_MAX) {
        const uint8_t *at = message.data;
        proto_field_t field;
        if (!proto_read_field(&message, &field)) break;
        if (number == 0) number = field.number;
        if (field.number != number || field.kind != PROTO_BYTES) break;
        fields[count++] =
            (tow_bytes_t){at, (size_t)((const uint8_t *)message.data - at)};
    }
    return count;
}

/* Returns the end of the run. Without memory it stays unsorted, which costs
 * another compilation. */
static uint8_t *sort_run(uint8_t *start, const uint8_t *end)
{
    tow_bytes_t fields[TOW_OPTIONS_MAP_COUNT_MAX];
    const size_t count = read_run(start, end, fields);
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        size += fields[i].size;
    uint8_t *sorted = tow_malloc(size), *at = sorted;
    if (sorted == NULL) return start + size;
    qsort(fields, count, sizeof(fields[0]), compare_fields);
    for (size_t i = 0; i < count; i++) {
        memcpy(at, fields[i].data, fields[i].size);
        at += fields[i].size;
    }
    memcpy(start, sorted, size);
    tow_free(sorted);
    return start + size;
}

/* The message is complete. */
static void sort_maps(uint8_t *start, const uint8_t *end, is_map_t is_map)
{
    while (start < end) {
        tow_bytes_t message = {start, (size_t)(end - start)};
        proto_field_t field;
        if (!proto_read_field(&message, &field)) return;
        start = field.kind == PROTO_BYTES && is_map(field.number)
                    ? sort_run(start, end)
                    : start + ((const uint8_t *)message.data - start);
    }
}

static void sort_debug_options(tow_bytes_t build)
{
    while (build.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&build, &field)) return;
        if (field.number != BUILD_DEBUG || field.kind != PROTO_BYTES) continue;
        uint8_t *start = (uint8_t *)(uintptr_t)field.bytes.data;
        sort_maps(start, start + field.bytes.size, is_map_of_debug);
    }
}

/* Our own copy. */
static void sort_options(uint8_t *bytes, size_t size)
{
    tow_bytes_t message = {bytes, size};
    sort_maps(bytes, bytes + size, is_map_of_options);
    while (message.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&message, &field)) return;
        if (is_build(&field)) sort_debug_options(field.bytes);
    }
}

/* -- Reassigning: the interface --------------------------------------------- */

tow_status_t tow_compile_options_reassign(tow_bytes_t given,
                                          const tow_assignment_t *assignment,
                                          void **out_bytes, size_t *out_size)
{
    check_assignment(assignment);
    *out_bytes = NULL;
    *out_size = 0;
    if (given.size > TOW_COMPILE_OPTIONS_BYTES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "compile options of %zu bytes: the limit is %zu",
                         given.size, TOW_COMPILE_OPTIONS_BYTES_MAX);
    size_t others, kept;
    if (!copy_fields(given, is_build, NULL, &others) ||
        !copy_builds(given, NULL, &kept))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "compile options: not a CompileOptionsProto");
    const size_t build = kept + place_size(assignment);
    uint8_t *bytes = tow_malloc(others + length_size(build));
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    size_t count;
    bool copied = copy_fields(given, is_build, bytes, &count);
    uint8_t *at = proto_write_length(bytes + others, OPTIONS_BUILD, build);
    copied = copied && copy_builds(given, at, &count);
    TOW_ASSERT(copied && count == kept);
    at = write_place(at + kept, assignment);
    *out_bytes = bytes;
    *out_size = (size_t)(at - bytes);
    TOW_ASSERT(*out_size == others + length_size(build));
    sort_options(bytes, *out_size);
    return TOW_OK;
}

/* -- Reading ---------------------------------------------------------------- */

static bool read_counts(tow_bytes_t build, uint64_t *replicas,
                        uint64_t *partitions)
{
    while (build.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&build, &field)) return false;
        if (field.kind != PROTO_VARINT) continue;
        if (field.number == BUILD_REPLICA_COUNT) *replicas = field.value;
        if (field.number == BUILD_PARTITION_COUNT) *partitions = field.value;
    }
    return true;
}

tow_status_t tow_compile_options_counts(tow_bytes_t given,
                                        size_t *out_replica_count,
                                        size_t *out_partition_count)
{
    uint64_t replicas = 0, partitions = 0;
    while (given.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&given, &field) ||
            (is_build(&field) &&
             !read_counts(field.bytes, &replicas, &partitions)))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "compile options: not a CompileOptionsProto");
    }
    if (replicas > TOW_ASSIGNED_DEVICE_COUNT_MAX ||
        partitions > TOW_ASSIGNED_DEVICE_COUNT_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "compile options: %llu replicas x %llu partitions: the "
            "limit is %zu devices",
            (unsigned long long)replicas, (unsigned long long)partitions,
            TOW_ASSIGNED_DEVICE_COUNT_MAX);
    *out_replica_count = replicas > 0 ? replicas : 1;
    *out_partition_count = partitions > 0 ? partitions : 1;
    return TOW_OK;
}

tow_status_t tow_assignment_pack(const tow_assignment_t *assignment,
                                 void **out_bytes, size_t *out_size)
{
    check_assignment(assignment);
    TOW_ASSERT(assignment->device_ids != NULL);
    uint8_t *bytes = tow_malloc(assignment_size(assignment));
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_size = (size_t)(write_assignment(bytes, assignment) - bytes);
    *out_bytes = bytes;
    return TOW_OK;
}

/* One column of the table: packed, or one by one. */
typedef struct column {
    int64_t *ids; /* of replica 0; those of the others are `stride` apart */
    size_t stride;
    size_t room;
    size_t count;
} column_t;

static bool add_id(column_t *column, uint64_t id)
{
    if (column->count >= column->room) return false;
    column->ids[column->count++ * column->stride] = (int64_t)id;
    return true;
}

static bool read_column(tow_bytes_t message, column_t *column)
{
    while (message.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&message, &field)) return false;
        if (field.number != COMPUTATION_REPLICA_DEVICES) continue;
        if (field.kind == PROTO_VARINT && !add_id(column, field.value))
            return false;
        while (field.kind == PROTO_BYTES && field.bytes.size > 0) {
            uint64_t id;
            if (!proto_read_varint(&field.bytes, &id) || !add_id(column, id))
                return false;
        }
    }
    return column->count == column->room;
}

static bool read_assignment(tow_bytes_t message, size_t replica_count,
                            size_t partition_count, int64_t *ids)
{
    size_t partition = 0;
    while (message.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&message, &field)) return false;
        if (field.number != ASSIGNMENT_COMPUTATIONS ||
            field.kind != PROTO_BYTES)
            continue;
        if (partition >= partition_count) return false;
        column_t column = {.ids = ids + partition++,
                           .stride = partition_count,
                           .room = replica_count};
        if (!read_column(field.bytes, &column)) return false;
    }
    return partition == partition_count;
}

/* The last one counts, as for every repeated field. */
bool tow_compile_options_devices(tow_bytes_t given, size_t replica_count,
                                 size_t partition_count,
                                 int64_t *out_device_ids)
{
    bool found = false;
    while (given.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&given, &field)) return false;
        if (!is_build(&field)) continue;
        while (field.bytes.size > 0) {
            proto_field_t inner;
            if (!proto_read_field(&field.bytes, &inner)) return false;
            if (inner.number == BUILD_ASSIGNMENT && inner.kind == PROTO_BYTES)
                found = read_assignment(inner.bytes, replica_count,
                                        partition_count, out_device_ids);
        }
    }
    return found;
}

/* -- Options by name -------------------------------------------------------- */

static bool is_text(tow_bytes_t bytes, const char *text)
{
    return bytes.size == strlen(text) &&
           memcmp(bytes.data, text, bytes.size) == 0;
}

/* An entry of the map. The last field of a number counts. */
static bool read_entry(tow_bytes_t entry, const char *key,
                       tow_bytes_t *out_value)
{
    bool is_found = false;
    *out_value = (tow_bytes_t){0};
    while (entry.size > 0) {
        proto_field_t field;
        if (!proto_read_field(&entry, &field)) return false;
        if (field.kind != PROTO_BYTES) continue;
        if (field.number == OVERRIDE_KEY) is_found = is_text(field.bytes, key);
        if (field.number == OVERRIDE_VALUE) *out_value = field.bytes;
    }
    return is_found;
}

static bool is_entry(const proto_field_t *field, const char *key,
                     tow_bytes_t *out_value)
{
    return field->number == OPTIONS_OVERRIDES && field->kind == PROTO_BYTES &&
           read_entry(field->bytes, key, out_value);
}

/* The value of the last such entry. */
static bool find_entry(tow_bytes_t given, const char *key,
                       tow_bytes_t *out_value)
{
    bool is_found = false;
    while (given.size > 0) {
        proto_field_t field;
        tow_bytes_t value;
        if (!proto_read_field(&given, &field)) return false;
        if (!is_entry(&field, key, &value)) continue;
        *out_value = value;
        is_found = true;
    }
    return is_found;
}

/* The message is complete. Returns the size. */
static size_t copy_without(tow_bytes_t given, const char *key, uint8_t *at)
{
    const uint8_t *begin = at;
    while (given.size > 0) {
        const uint8_t *start = given.data;
        proto_field_t field;
        tow_bytes_t value;
        if (!proto_read_field(&given, &field)) break;
        if (is_entry(&field, key, &value)) continue;
        const size_t count = (size_t)((const uint8_t *)given.data - start);
        memcpy(at, start, count);
        at += count;
    }
    return (size_t)(at - begin);
}

static tow_status_t read_override(tow_bytes_t value, const char *key,
                                  tow_bytes_t *out_text)
{
    proto_field_t field;
    if (value.size == 0 || !proto_read_field(&value, &field) ||
        field.number != OVERRIDE_TEXT || field.kind != PROTO_BYTES)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "compile option %s: its value is not a text", key);
    *out_text = field.bytes;
    return TOW_OK;
}

tow_status_t tow_compile_options_take_text(tow_bytes_t given, const char *key,
                                           tow_bytes_t *out_text,
                                           void **out_bytes, size_t *out_size)
{
    *out_text = (tow_bytes_t){0};
    *out_bytes = NULL;
    *out_size = given.size;
    tow_bytes_t value;
    if (!find_entry(given, key, &value)) return TOW_OK;
    TOW_RETURN_IF_ERROR(read_override(value, key, out_text));
    uint8_t *bytes = tow_malloc(given.size);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_size = copy_without(given, key, bytes);
    *out_bytes = bytes;
    return TOW_OK;
}
