#include "fixture.h"
#include "subject.h"

#include "device/compiler/child.h"

tow_compiler_t *subject_open(size_t queue_count_max)
{
    char program[4096];
    tow_compiler_t *compiler = NULL;
    const char *plugin = subject_plugin();
    expect_ok(tow_child_compiler_find(program, sizeof(program)));
    const tow_child_compiler_options_t options = {.program = program,
                                                  .plugin = plugin,
                                                  .queue_count_max =
                                                      queue_count_max};
    expect_ok(tow_child_compiler_create(fixture_env(), &options, &compiler));
    return compiler;
}

void subject_close(void) {}
