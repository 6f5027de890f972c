/* Runs that take long: somebody is told, and may give them up. */
#include <string.h>

#include "base/alloc.h"
#include "client/client_impl.h"
#include "env/tuning.h"

void tow_client_set_watcher(tow_client_t *client,
                            const tow_client_watcher_t *watcher)
{
    client->watcher = *watcher;
}

static void give_up(tow_client_t *client, run_record_t *record,
                    const tow_msg_run_late_t *late)
{
    if (record->is_given_up) return;
    record->is_given_up = true;
    tow_status_t cause = TOW_ERROR(
        TOW_DEADLINE_EXCEEDED, "given up after %llu s: %s",
        (unsigned long long)late->waited_ns / TOW_NS_PER_S, late->text);
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    tow_msg_failure_t failure = tow_failure_of(cause);
    cancel.run = record->id;
    cancel.failure = &failure;
    tow_status_ignore(tow_client_send(client, TOW_MESSAGE_CANCEL, &cancel.base),
                      "without a cluster there is nothing to cancel");
    tow_status_release(cause);
}

void tow_run_is_late(tow_client_t *client, const tow_msg_run_late_t *late)
{
    run_record_t *record = tow_map_find(&client->runs, late->run);
    if (record == NULL || client->watcher.late == NULL) return;
    if (client->watcher.late(client->watcher.context,
                             &(tow_late_run_t){.run = late->run,
                                               .waited_ns = late->waited_ns,
                                               .text = late->text}))
        give_up(client, record, late);
}
