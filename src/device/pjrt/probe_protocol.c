#include "device/child/tuning.h"
#include "device/pjrt/probe.h"

static const uint64_t part_bytes_max[][TOW_CHILD_PART_COUNT] = {
    [TOW_PJRT_PROBE_RESULT] = {TOW_CHILD_TEXT_BYTES_MAX},
};

const tow_child_protocol_t tow_pjrt_probe_protocol = {
    .magic = 0x50574f54u,
    .type_count = TOW_PJRT_PROBE_RESULT + 1,
    .part_bytes_max = part_bytes_max,
};
