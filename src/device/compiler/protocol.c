#include "device/compiler/protocol_impl.h"

#include "device/child/tuning.h"
#include "device/compiler/tuning.h"
#include "device/options.h"
#include "wire/message.h"

static const uint64_t part_bytes_max[][TOW_CHILD_PART_COUNT] = {
    [COMPILE_REQUEST] = {TOW_NAME_MAX, TOW_COMPILE_OPTIONS_BYTES_MAX,
                         TOW_COMPILER_PROGRAM_BYTES_MAX},
    [COMPILE_READY] = {TOW_CHILD_TEXT_BYTES_MAX},
    [COMPILE_REPLY] = {TOW_CHILD_TEXT_BYTES_MAX, TOW_SIGNATURE_BYTES_MAX,
                       TOW_COMPILER_EXECUTABLE_BYTES_MAX},
    [COMPILE_QUERY] = {0, TOW_PARTITION_QUERY_BYTES_MAX},
    [COMPILE_ANSWER] = {TOW_CHILD_TEXT_BYTES_MAX,
                        TOW_PARTITION_REPLY_BYTES_MAX},
};

const tow_child_protocol_t tow_compile_protocol = {
    .magic = 0x43574f54u,
    .type_count = COMPILE_TYPE_COUNT,
    .part_bytes_max = part_bytes_max,
};
