/* The smallest xla.CompileOptionsProto: one device. By hand, for the schema is
 * XLA's and three numbers are all we need of it. */
#include "device/pjrt/pjrt_impl.h"

#include <string.h>

/* Field numbers in xla/pjrt/proto/compile_options.proto and xla_data.proto. */
enum {
    OPTIONS_BUILD = 3,
    BUILD_DEVICE_ORDINAL = 1,
    BUILD_REPLICA_COUNT = 4,
    BUILD_PARTITION_COUNT = 5,
    BUILD_ASSIGNMENT = 9,
    ASSIGNMENT_REPLICA_COUNT = 1,
    ASSIGNMENT_COMPUTATION_COUNT = 2,
    ASSIGNMENT_COMPUTATIONS = 3,
    COMPUTATION_REPLICA_DEVICES = 1,
};

typedef struct writer {
    uint8_t bytes[PJRT_OPTIONS_BYTES_MAX];
    size_t size;
} writer_t;

static void put_varint(writer_t *writer, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        writer->bytes[writer->size++] = (uint8_t)(value | 0x80);
    writer->bytes[writer->size++] = (uint8_t)value;
}

static void put_number(writer_t *writer, uint32_t field, uint64_t value)
{
    put_varint(writer, field << 3);
    put_varint(writer, value);
}

static void put_message(writer_t *writer, uint32_t field,
                        const writer_t *message)
{
    put_varint(writer, field << 3 | 2);
    put_varint(writer, message->size);
    TOW_ASSERT(writer->size + message->size <= sizeof(writer->bytes));
    memcpy(writer->bytes + writer->size, message->bytes, message->size);
    writer->size += message->size;
}

size_t tow_pjrt_options_pack(int64_t device_id,
                             uint8_t bytes[PJRT_OPTIONS_BYTES_MAX])
{
    writer_t computation = {.size = 0};
    put_number(&computation, COMPUTATION_REPLICA_DEVICES, (uint64_t)device_id);
    writer_t assignment = {.size = 0};
    put_number(&assignment, ASSIGNMENT_REPLICA_COUNT, 1);
    put_number(&assignment, ASSIGNMENT_COMPUTATION_COUNT, 1);
    put_message(&assignment, ASSIGNMENT_COMPUTATIONS, &computation);
    writer_t build = {.size = 0};
    put_number(&build, BUILD_DEVICE_ORDINAL, UINT64_MAX); /* none */
    put_number(&build, BUILD_REPLICA_COUNT, 1);
    put_number(&build, BUILD_PARTITION_COUNT, 1);
    put_message(&build, BUILD_ASSIGNMENT, &assignment);
    writer_t options = {.size = 0};
    put_message(&options, OPTIONS_BUILD, &build);
    memcpy(bytes, options.bytes, options.size);
    return options.size;
}
