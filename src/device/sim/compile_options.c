/* Reads the device assignment of a serialised CompileOptionsProto, and skips
 * everything else, which simulated devices do not use.
 *
 * xla/pjrt/proto/compile_options.proto: CompileOptionsProto has
 * executable_build_options = 3; that has num_replicas = 4, num_partitions = 5
 * and device_assignment = 9; that has replica_count = 1, computation_count = 2
 * and computation_devices = 3, each with repeated replica_device_ids = 1. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/proto.h"
#include "device/sim/driver_impl.h"

/* The state of reading. Lists may be in several fields, so ids are counted
 * while they are stored. */
typedef struct found {
    uint64_t replica_count;
    uint64_t partition_count;
    uint64_t assigned_replica_count;
    uint64_t assigned_partition_count;
    tow_bytes_t assignment;
    bool has_assignment;
    compile_options_t *options;
    uint32_t partition; /* of the ids that are being read */
    uint32_t replica;
} found_t;

static bool put_id(found_t *found, uint64_t id)
{
    const compile_options_t *options = found->options;
    if (found->replica == options->replica_count) return false;
    size_t place =
        (size_t)found->replica++ * options->partition_count + found->partition;
    options->ids[place] = (int64_t)id;
    return true;
}

static bool read_ids(found_t *found, tow_bytes_t bytes)
{
    proto_field_t field;
    found->replica = 0;
    while (bytes.size > 0) {
        if (!proto_read_field(&bytes, &field)) return false;
        if (field.number != 1) continue;
        if (field.kind == PROTO_VARINT && !put_id(found, field.value))
            return false;
        if (field.kind != PROTO_BYTES) continue;
        uint64_t id;
        while (field.bytes.size > 0)
            if (!proto_read_varint(&field.bytes, &id) || !put_id(found, id))
                return false;
    }
    return found->replica == found->options->replica_count;
}

static bool read_assignment(found_t *found)
{
    tow_bytes_t bytes = found->assignment;
    proto_field_t field;
    while (bytes.size > 0) {
        if (!proto_read_field(&bytes, &field)) return false;
        if (field.number != 3 || field.kind != PROTO_BYTES) continue;
        if (found->partition == found->options->partition_count) return false;
        if (!read_ids(found, field.bytes)) return false;
        found->partition++;
    }
    return found->partition == found->options->partition_count;
}

static bool read_assignment_counts(found_t *found)
{
    tow_bytes_t bytes = found->assignment;
    proto_field_t field;
    while (bytes.size > 0) {
        if (!proto_read_field(&bytes, &field)) return false;
        if (field.number == 1 && field.kind == PROTO_VARINT)
            found->assigned_replica_count = field.value;
        if (field.number == 2 && field.kind == PROTO_VARINT)
            found->assigned_partition_count = field.value;
    }
    return true;
}

static bool read_build_options(found_t *found, tow_bytes_t bytes)
{
    proto_field_t field;
    while (bytes.size > 0) {
        if (!proto_read_field(&bytes, &field)) return false;
        if (field.number == 4 && field.kind == PROTO_VARINT)
            found->replica_count = field.value;
        if (field.number == 5 && field.kind == PROTO_VARINT)
            found->partition_count = field.value;
        if (field.number != 9 || field.kind != PROTO_BYTES) continue;
        found->assignment = field.bytes;
        found->has_assignment = true;
        if (!read_assignment_counts(found)) return false;
    }
    return true;
}

static bool read_options(found_t *found, tow_bytes_t bytes)
{
    proto_field_t field;
    while (bytes.size > 0) {
        if (!proto_read_field(&bytes, &field)) return false;
        if (field.number == 3 && field.kind == PROTO_BYTES &&
            !read_build_options(found, field.bytes))
            return false;
    }
    return true;
}

static tow_status_t malformed(void)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "compile options: not a CompileOptionsProto, or its "
                     "device assignment is incomplete");
}

static tow_status_t check_counts(const found_t *found)
{
    uint64_t replicas = found->replica_count,
             partitions = found->partition_count;
    if (replicas == 0 || partitions == 0 ||
        replicas > TOW_SIM_DEVICE_COUNT_MAX ||
        partitions > TOW_SIM_DEVICE_COUNT_MAX / replicas)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "compile options: %" PRIu64 " replicas of %" PRIu64
                         " partitions; 1 to %u devices in all are allowed",
                         replicas, partitions, TOW_SIM_DEVICE_COUNT_MAX);
    if (!found->has_assignment ||
        (found->assigned_replica_count == replicas &&
         found->assigned_partition_count == partitions))
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "compile options: %" PRIu64 " replicas of %" PRIu64
                     " partitions, and devices for %" PRIu64 " of %" PRIu64,
                     replicas, partitions, found->assigned_replica_count,
                     found->assigned_partition_count);
}

static tow_status_t check_distinct(const compile_options_t *options)
{
    tow_map_t seen = {0};
    tow_status_t status = TOW_OK;
    size_t count = (size_t)options->replica_count * options->partition_count;
    for (size_t i = 0; i < count && status == TOW_OK; i++) {
        uint64_t id = (uint64_t)options->ids[i];
        if (tow_map_find(&seen, id) != NULL)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "compile options: device %" PRId64
                               " is assigned twice",
                               options->ids[i]);
        else if (!tow_map_put(&seen, id, &seen))
            status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_map_deinit(&seen);
    return status;
}

static tow_status_t take_assignment(found_t *found)
{
    compile_options_t *options = found->options;
    size_t count = (size_t)options->replica_count * options->partition_count;
    options->ids = tow_calloc(count, sizeof(*options->ids));
    if (options->ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status =
        read_assignment(found) ? check_distinct(options) : malformed();
    if (status == TOW_OK) return TOW_OK;
    tow_free(options->ids);
    options->ids = NULL;
    return status;
}

tow_status_t tow_sim_compile_options_read(tow_bytes_t bytes,
                                          compile_options_t *out_options)
{
    /* An absent number is 0 in the message and means 1. */
    found_t found = {.options = out_options};
    *out_options = (compile_options_t){0};
    if (!read_options(&found, bytes)) return malformed();
    if (found.replica_count == 0)
        found.replica_count =
            found.has_assignment ? found.assigned_replica_count : 1;
    if (found.partition_count == 0)
        found.partition_count =
            found.has_assignment ? found.assigned_partition_count : 1;
    TOW_RETURN_IF_ERROR(check_counts(&found));
    out_options->replica_count = (uint32_t)found.replica_count;
    out_options->partition_count = (uint32_t)found.partition_count;
    return found.has_assignment ? take_assignment(&found) : TOW_OK;
}
