#include "supervisor/log_environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tow_log_t tow_log_from_environment(const char *source)
{
    tow_log_t log = {.level = TOW_LOG_WARN, .source = source};
    const char *level = getenv("TOW_LOG");
    if (level != NULL && !tow_log_level_parse(level, &log.level))
        fprintf(stderr,
                "tow: TOW_LOG is '%s', not debug, info, warn, error or off: "
                "using warn\n",
                level);
    const char *format = getenv("TOW_LOG_FORMAT");
    if (format != NULL && strcmp(format, "json") == 0)
        log.format = TOW_LOG_JSON;
    return log;
}
