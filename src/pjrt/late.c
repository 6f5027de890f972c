/* A step that takes long: a line on standard error says which, how long, and who
 * has not finished it. Users see a program that stands still, and nothing else. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "env/tuning.h"
#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

/* Seconds that the environment says; `otherwise`: it says nothing that is a number.
 * "off" is 0. */
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

/* Inside. The cluster tells the same run again and again: after twice as long each
 * time is enough. True: it is to be given up. */
static bool late(void *context, const tow_late_run_t *run)
{
    late_watch_t *watch = context;
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

void tow_pjrt_watch_late(PJRT_Client *client)
{
    client->late.warn_s =
        seconds_in("TOW_STUCK_WARNING", TOW_PJRT_STUCK_WARNING_S);
    client->late.limit_s = seconds_in("TOW_STUCK_LIMIT", 0);
    client_enter(client);
    tow_client_set_watcher(client->tow,
                           &(tow_client_watcher_t){late, &client->late});
    client_leave_quietly(client);
}
