#include "subject.h"

#include <stdlib.h>

#include "base/testing.h"

const subject_t subject = {
    .device_kind = "cpu",
    .program = "module @add {\n"
               "  func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>)\n"
               "      -> tensor<4xf32> {\n"
               "    %c = stablehlo.add %a, %b : tensor<4xf32>\n"
               "    return %c : tensor<4xf32>\n"
               "  }\n"
               "}\n",
    .malformed = "module { func.func @main() { return %x : f32 } }",
    .complaint = "use of undeclared SSA value name",
};

const char *subject_plugin(void)
{
    const char *path = getenv("TOW_XLA_CPU");
    if (path == NULL)
        tow_test_skip("TOW_XLA_CPU does not name the adapter's file");
    return path;
}
