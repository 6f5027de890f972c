/* Names and process numbers of workers. */
#include "controller/controller_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "wire/handshake.h"

/* -- Process numbers ------------------------------------------------------- */

/* A worker has this number: nobody else gets it. */
static bool note_process(tow_ctl_roster_t *roster, uint32_t process)
{
    return process < roster->process_next ||
           tow_map_put(&roster->processes, process, roster);
}

/* The next number that no worker had. False: there is none. */
static bool take_process(tow_ctl_roster_t *roster, uint32_t *out_process)
{
    while (roster->process_next < TOW_PLACE_PROCESS_COUNT_MAX) {
        *out_process = roster->process_next++;
        if (tow_map_remove(&roster->processes, *out_process) == NULL)
            return true;
    }
    return false;
}

/* NULL: no worker has it now. */
static const tow_ctl_place_t *find_process(const tow_ctl_roster_t *roster,
                                           uint32_t process)
{
    for (const tow_list_t *item = roster->taken.next; item != &roster->taken;
         item = item->next) {
        const tow_ctl_place_t *place =
            TOW_CONTAINER_OF(item, const tow_ctl_place_t, node);
        if (place->process == process) return place;
    }
    return NULL;
}

/* -- Places ---------------------------------------------------------------- */

static bool is_taken(const tow_ctl_place_t *place)
{
    return place->worker != NULL || place->holder != NULL;
}

static void free_place(tow_ctl_place_t *place)
{
    tow_list_remove(&place->node);
    tow_free(place->name);
    tow_free(place->host);
    tow_free(place);
}

static void forget(tow_ctl_roster_t *roster, tow_ctl_place_t *place)
{
    tow_names_remove(&roster->by_name, place->name);
    free_place(place);
}

static tow_ctl_place_t *make_place(tow_ctl_roster_t *roster, const char *name)
{
    tow_ctl_place_t *place = tow_calloc(1, sizeof(*place));
    if (place == NULL) return NULL;
    tow_list_append(&roster->left, &place->node);
    place->name = tow_strdup(name);
    place->host = tow_strdup("");
    if (place->name == NULL || place->host == NULL ||
        !tow_names_put(&roster->by_name, name, place)) {
        free_place(place);
        return NULL;
    }
    roster->left_count++;
    return place;
}

static bool set_host(tow_ctl_place_t *place, const char *host)
{
    if (strcmp(place->host, host) == 0) return true;
    char *copy = tow_strdup(host);
    if (copy == NULL) return false;
    tow_free(place->host);
    place->host = copy;
    return true;
}

static void move_to_taken(tow_ctl_roster_t *roster, tow_ctl_place_t *place)
{
    if (is_taken(place)) return;
    roster->left_count--;
    tow_list_remove(&place->node);
    tow_list_append(&roster->taken, &place->node);
}

static void move_to_left(tow_ctl_roster_t *roster, tow_ctl_place_t *place)
{
    if (is_taken(place)) return;
    tow_list_remove(&place->node);
    tow_list_append(&roster->left, &place->node);
    roster->left_count++;
    if (roster->left_count <= TOW_PLACES_LEFT_MAX) return;
    roster->left_count--;
    forget(roster, TOW_CONTAINER_OF(roster->left.next, tow_ctl_place_t, node));
}

/* The first name of the host whose worker has left; NULL: none. */
static tow_ctl_place_t *find_left(const tow_ctl_roster_t *roster,
                                  const char *host)
{
    tow_ctl_place_t *first = NULL;
    for (tow_list_t *item = roster->left.next; item != &roster->left;
         item = item->next) {
        tow_ctl_place_t *place = TOW_CONTAINER_OF(item, tow_ctl_place_t, node);
        if (place->is_named || strcmp(place->host, host) != 0) continue;
        if (first == NULL || strverscmp(place->name, first->name) < 0)
            first = place;
    }
    return first;
}

/* A process of the host that is perhaps dead: its connection is down, and its
 * session has not ended. */
static const tow_ctl_place_t *find_silent(const tow_ctl_roster_t *roster,
                                          const char *host)
{
    for (const tow_list_t *item = roster->taken.next; item != &roster->taken;
         item = item->next) {
        const tow_ctl_place_t *place =
            TOW_CONTAINER_OF(item, const tow_ctl_place_t, node);
        const tow_session_t *session =
            place->worker != NULL ? place->worker->session : place->holder;
        if (!place->is_named && strcmp(place->host, host) == 0 &&
            !tow_session_is_connected(session))
            return place;
    }
    return NULL;
}

static tow_ctl_place_t *make_next_place(tow_controller_t *controller)
{
    char name[32];
    uint32_t number = controller->options.own_worker_count;
    do {
        snprintf(name, sizeof(name), "worker-%u", number++);
    } while (tow_names_find(&controller->roster.by_name, name) != NULL);
    return make_place(&controller->roster, name);
}

/* -- Reserving ------------------------------------------------------------- */

static tow_status_t check_enrol(const tow_msg_worker_enrol_t *enrol)
{
    if (enrol->name[0] != '\0' && !tow_identity_name_is_valid(enrol->name))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a worker's name has 1 to %u letters, digits and "
                         "-_./: give this one another --name",
                         TOW_IDENTITY_NAME_MAX);
    if (enrol->has_process && enrol->process >= TOW_PLACE_PROCESS_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "process number %u exceeds the limit of %u: leave "
                         "--process out, and the controller chooses one",
                         enrol->process, TOW_PLACE_PROCESS_COUNT_MAX - 1);
    return TOW_OK;
}

static tow_status_t name_is_taken(const tow_ctl_place_t *place)
{
    return TOW_ERROR(TOW_ALREADY_EXISTS,
                     "a worker named %s is there already, on host %s (process "
                     "number %u): leave --name out, or give another name",
                     place->name, place->host, place->process);
}

static tow_status_t process_is_taken(uint32_t process,
                                     const tow_ctl_place_t *place)
{
    return TOW_ERROR(TOW_ALREADY_EXISTS,
                     "process number %u is taken by worker %s on host %s: "
                     "leave --process out, and the controller chooses one",
                     process, place->name, place->host);
}

/* `place` is the one to reserve; NULL: a new one. */
static tow_status_t choose_process(tow_ctl_roster_t *roster,
                                   const tow_msg_worker_enrol_t *enrol,
                                   const tow_ctl_place_t *place,
                                   uint32_t *out_process)
{
    if (enrol->has_process) {
        const tow_ctl_place_t *other = find_process(roster, enrol->process);
        *out_process = enrol->process;
        return other == NULL ? TOW_OK : process_is_taken(enrol->process, other);
    }
    if (take_process(roster, out_process)) return TOW_OK;
    /* After a million restarts: the number that the worker had before. */
    if (place != NULL && find_process(roster, place->process) == NULL) {
        *out_process = place->process;
        return TOW_OK;
    }
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "workers have used all %u process numbers: restart the "
                     "controller",
                     TOW_PLACE_PROCESS_COUNT_MAX);
}

static tow_status_t find_place(const tow_ctl_roster_t *roster,
                               const tow_msg_worker_enrol_t *enrol,
                               tow_ctl_place_t **out_place)
{
    const bool is_named = enrol->name[0] != '\0';
    *out_place = is_named ? tow_names_find(&roster->by_name, enrol->name)
                          : find_left(roster, enrol->host);
    if (*out_place != NULL && is_taken(*out_place))
        return name_is_taken(*out_place);
    const tow_ctl_place_t *silent = *out_place == NULL && !is_named
                                        ? find_silent(roster, enrol->host)
                                        : NULL;
    if (silent == NULL) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "worker %s of host %s has lost its connection: the "
                     "controller waits to see whether it lives",
                     silent->name, silent->host);
}

tow_status_t tow_ctl_place_reserve(tow_controller_t *controller,
                                   const tow_msg_worker_enrol_t *enrol,
                                   tow_session_t *holder,
                                   tow_ctl_place_t **out_place)
{
    tow_ctl_roster_t *roster = &controller->roster;
    tow_ctl_place_t *place = NULL;
    uint32_t process = 0;
    TOW_RETURN_IF_ERROR(check_enrol(enrol));
    TOW_RETURN_IF_ERROR(find_place(roster, enrol, &place));
    TOW_RETURN_IF_ERROR(choose_process(roster, enrol, place, &process));
    const bool is_named = enrol->name[0] != '\0';
    if (place == NULL)
        place = is_named ? make_place(roster, enrol->name)
                         : make_next_place(controller);
    if (place == NULL || !set_host(place, enrol->host) ||
        !note_process(roster, process))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    move_to_taken(roster, place);
    place->process = process;
    place->is_named = place->is_named || is_named;
    place->holder = holder;
    *out_place = place;
    return TOW_OK;
}

void tow_ctl_place_release(tow_controller_t *controller, tow_ctl_place_t *place)
{
    TOW_ASSERT(place->holder != NULL);
    place->holder = NULL;
    move_to_left(&controller->roster, place);
}

/* -- Joining and leaving --------------------------------------------------- */

/* Reserved, and not by the process that joins. */
static bool is_kept_from(const tow_ctl_place_t *place, const tow_peer_t *peer)
{
    if (place == NULL || place->worker != NULL || place->holder == NULL)
        return false;
    const tow_peer_t *holder = tow_session_peer(place->holder);
    return holder->incarnation != peer->incarnation ||
           strcmp(holder->name, peer->name) != 0;
}

tow_status_t tow_ctl_roster_check_join(const tow_controller_t *controller,
                                       const char *name, uint32_t process,
                                       const tow_peer_t *peer)
{
    const tow_ctl_roster_t *roster = &controller->roster;
    const tow_ctl_place_t *place = tow_names_find(&roster->by_name, name);
    if (is_kept_from(place, peer)) return name_is_taken(place);
    const tow_ctl_place_t *other = find_process(roster, process);
    /* Its own number under another name would be there twice. */
    if (is_kept_from(other, peer) ||
        (other != NULL && other != place && other->worker == NULL))
        return process_is_taken(process, other);
    return TOW_OK;
}

tow_status_t tow_ctl_roster_join(tow_ctl_worker_t *worker,
                                 const tow_msg_worker_join_t *join)
{
    tow_ctl_roster_t *roster = &worker->controller->roster;
    tow_ctl_place_t *place = tow_names_find(&roster->by_name, worker->name);
    if (place == NULL) {
        place = make_place(roster, worker->name);
        if (place != NULL) place->is_named = !join->is_name_assigned;
    }
    if (place == NULL || !set_host(place, join->host) ||
        !note_process(roster, worker->process))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_ASSERT(place->worker == NULL); /* The resource manager has checked. */
    move_to_taken(roster, place);
    place->process = worker->process;
    place->worker = worker;
    worker->place = place;
    return TOW_OK;
}

void tow_ctl_roster_leave(tow_ctl_worker_t *worker)
{
    tow_ctl_place_t *place = worker->place;
    TOW_ASSERT(place != NULL && place->worker == worker);
    worker->place = NULL;
    place->worker = NULL;
    move_to_left(&worker->controller->roster, place);
}

/* -- The roster ------------------------------------------------------------ */

void tow_ctl_roster_init(tow_controller_t *controller)
{
    tow_list_init(&controller->roster.taken);
    tow_list_init(&controller->roster.left);
    const tow_controller_options_t *options = &controller->options;
    controller->roster.process_next =
        options->first_process > options->own_worker_count
            ? options->first_process
            : options->own_worker_count;
}

static void free_list(tow_list_t *list)
{
    while (!tow_list_is_empty(list))
        free_place(TOW_CONTAINER_OF(list->next, tow_ctl_place_t, node));
}

void tow_ctl_roster_deinit(tow_controller_t *controller)
{
    free_list(&controller->roster.taken);
    free_list(&controller->roster.left);
    tow_names_deinit(&controller->roster.by_name);
    tow_map_deinit(&controller->roster.processes);
}

static size_t check_list(const tow_ctl_roster_t *roster, const tow_list_t *list,
                         bool must_be_taken)
{
    size_t count = 0;
    for (const tow_list_t *item = list->next; item != list; item = item->next) {
        const tow_ctl_place_t *place =
            TOW_CONTAINER_OF(item, const tow_ctl_place_t, node);
        TOW_ASSERT(is_taken(place) == must_be_taken);
        TOW_ASSERT(tow_names_find(&roster->by_name, place->name) == place);
        /* No two workers have one number. */
        TOW_ASSERT(!must_be_taken ||
                   find_process(roster, place->process) == place);
        TOW_ASSERT(place->worker == NULL || place->worker->place == place);
        count++;
    }
    return count;
}

void tow_ctl_roster_check(const tow_controller_t *controller)
{
    const tow_ctl_roster_t *roster = &controller->roster;
    const size_t taken_count = check_list(roster, &roster->taken, true);
    const size_t left_count = check_list(roster, &roster->left, false);
    TOW_ASSERT(left_count == roster->left_count);
    TOW_ASSERT(left_count <= TOW_PLACES_LEFT_MAX);
    TOW_ASSERT(tow_names_count(&roster->by_name) == taken_count + left_count);
}
