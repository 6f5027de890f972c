/* XLA on the CPU, through its adapter. */
#include <stdlib.h>

#include "fixture.h"
#include "subject_pjrt.h"

static const char add[] =
    "module @add {\n"
    "  func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>)\n"
    "      -> tensor<4xf32> {\n"
    "    %c = stablehlo.add %a, %b : tensor<4xf32>\n"
    "    return %c : tensor<4xf32>\n"
    "  }\n"
    "}\n";

static const char donate[] =
    "module @donate {\n"
    "  func.func @main(%a: tensor<4xf32> {tf.aliasing_output = 0 : i32},\n"
    "      %b: tensor<4xf32>) -> tensor<4xf32> {\n"
    "    %c = stablehlo.add %a, %b : tensor<4xf32>\n"
    "    return %c : tensor<4xf32>\n"
    "  }\n"
    "}\n";

static const char large[] =
    "module @large {\n"
    "  func.func @main(%a: tensor<65536xf32> {tf.aliasing_output = 0 : i32},\n"
    "      %b: tensor<65536xf32>) -> tensor<65536xf32> {\n"
    "    %c = stablehlo.add %a, %b : tensor<65536xf32>\n"
    "    return %c : tensor<65536xf32>\n"
    "  }\n"
    "}\n";

/* Its result does not fit. */
static const char fails[] =
    "module @fails {\n"
    "  func.func @main(%a: tensor<4xf32>) -> tensor<1000000x4xf32> {\n"
    "    %b = stablehlo.broadcast_in_dim %a, dims = [1]\n"
    "        : (tensor<4xf32>) -> tensor<1000000x4xf32>\n"
    "    return %b : tensor<1000000x4xf32>\n"
    "  }\n"
    "}\n";

static const char after[] =
    "module @after {\n"
    "  func.func @main(%a: tensor<1000000x4xf32>) -> tensor<4xf32> {\n"
    "    %b = stablehlo.slice %a [7:8, 0:4]\n"
    "        : (tensor<1000000x4xf32>) -> tensor<1x4xf32>\n"
    "    %c = stablehlo.reshape %b : (tensor<1x4xf32>) -> tensor<4xf32>\n"
    "    return %c : tensor<4xf32>\n"
    "  }\n"
    "}\n";

static void open_xla(tow_env_t *env, size_t device_count, uint64_t memory_bytes)
{
    subject_pjrt_open(env, getenv("TOW_XLA_CPU"), device_count, memory_bytes);
}

static const char *why_not(void)
{
    return getenv("TOW_XLA_CPU") == NULL
               ? "TOW_XLA_CPU does not name the adapter's file"
               : NULL;
}

const subject_t subject = {
    .name = "pjrt",
    .computes = true,
    .shares_host = true,
    .shares_in_place = true,
    .format = TOW_PROGRAM_MLIR,
    .programs = {[PROGRAM_ADD] = add,
                 [PROGRAM_DONATE] = donate,
                 [PROGRAM_LARGE] = large,
                 [PROGRAM_FAIL] = fails,
                 [PROGRAM_AFTER] = after,
                 [PROGRAM_MALFORMED] =
                     "module { func.func @main() { return %x : f32 } }"},
    .open = open_xla,
    .why_not = why_not,
};
