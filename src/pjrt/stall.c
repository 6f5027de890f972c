/* The stall watchdog of users: a line on standard error names a step that
 * takes long, its duration, and what stalls it. Otherwise users see only a
 * program that hangs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/tuning.h"
#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

/* Seconds from the environment; "off" is 0, and `otherwise` replaces anything
 * that is not a number. */
static uint64_t seconds_in(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || *text == '\0') return otherwise;
    if (strcmp(text, "off") == 0) return 0;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno == 0 && *end == '\0' && *text != '-') return value;
    fprintf(stderr,
            "towpath: %s=%s is no number of seconds, and not used: give one, "
            "or off\n",
            name, text);
    return otherwise;
}

/* Locked. The cluster reports the same run every second; warns after twice as
 * long each time. True: cancels the run. */
static bool stall_watch(void *context, const tow_stalled_run_t *run)
{
    stall_watch_t *watch = context;
    const uint64_t waited_s = run->waited_ns / TOW_NS_PER_S;
    const bool is_up = watch->limit_s > 0 && waited_s >= watch->limit_s;
    if (run->run != watch->run) {
        watch->run = run->run;
        watch->next_s = watch->warn_s;
    }
    if (watch->warn_s == 0 || waited_s < watch->next_s) return is_up;
    watch->next_s = 2 * waited_s;
    fprintf(stderr,
            "towpath: %s%s. `tow status` and `tow trace` show what the cluster "
            "does; TOW_STUCK_LIMIT=seconds gives up after so long, "
            "TOW_STUCK_WARNING=off says nothing.\n",
            run->text, is_up ? "; it is given up" : "");
    return is_up;
}

void tow_plugin_watch_stalls(PJRT_Client *client)
{
    client->stall_watch.warn_s =
        seconds_in("TOW_STUCK_WARNING", TOW_PLUGIN_STALL_WARNING_S);
    client->stall_watch.limit_s = seconds_in("TOW_STUCK_LIMIT", 0);
    client_enter(client);
    tow_client_set_stall_watcher(
        client->tow, &(tow_stall_watcher_t){stall_watch, &client->stall_watch});
    client_leave_lazily(client);
}
