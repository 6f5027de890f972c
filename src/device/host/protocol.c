#include "device/host/protocol_impl.h"

static const uint64_t part_bytes_max[][TOW_CHILD_PART_COUNT] = {
    [HOST_CALL] = {sizeof(host_call_t)},
    [HOST_RESULT] = {TOW_HOST_ERROR_BYTES_MAX},
};

const tow_child_protocol_t tow_host_protocol = {
    .magic = 0x48574f54u,
    .type_count = HOST_TYPE_COUNT,
    .part_bytes_max = part_bytes_max,
};
