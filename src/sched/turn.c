/* A turn: what can be granted is granted, in one order for the whole island.
 *
 * Two devices that start gangs A and B in different orders wait for each other
 * inside their collectives for ever, so the order is decided once, here, and
 * never per device. A ticket that the policy chose and whose devices have no
 * room in their queues waits, and its devices are marked: whoever was chosen
 * later and needs one of them waits too, or a gang of many devices would wait
 * for ever behind small ones that never leave all of its queues short at once.
 * When something was given back, those that wait are looked at again, in the
 * order in which they were chosen, and only then is the policy asked for more. */
#include "base/assert.h"
#include "sched/sched_impl.h"

typedef enum verdict {
    CAN_BE_GRANTED,
    WAITS_FOR_RUN_AHEAD,
    WAITS_FOR_MEMORY,
    CANNOT_RUN, /* a placement of it is lost */
} verdict_t;

/* -- Looking ------------------------------------------------------------------ */

/* What a ticket takes of one device. */
typedef struct share {
    uint64_t steps;
    uint64_t bytes;
} share_t;

static bool is_awaited(const tow_sched_t *sched, const tow_account_t *account)
{
    return account->claim_ == sched->walk;
}

/* More steps than may ever wait are fine on an empty queue, and none at all on
 * one that such a ticket has filled. */
static bool has_run_ahead(const tow_sched_t *sched,
                          const tow_account_t *account, uint64_t steps)
{
    return account->step_count == 0 || steps == 0 ||
           account->step_count + steps <= sched->options.run_ahead_max;
}

static verdict_t judge(const tow_sched_t *sched, const tow_account_t *account,
                       share_t share)
{
    if (is_awaited(sched, account) ||
        !has_run_ahead(sched, account, share.steps))
        return WAITS_FOR_RUN_AHEAD;
    if (!tow_account_fits(account, share.bytes)) return WAITS_FOR_MEMORY;
    return CAN_BE_GRANTED;
}

static verdict_t judge_part(const tow_sched_t *sched,
                            const tow_ticket_part_t *part)
{
    const tow_placement_t *placement = part->placement;
    share_t share = {part->step_count, part->bytes};
    verdict_t verdict = CAN_BE_GRANTED;
    if (placement->claim_ == sched->walk) return WAITS_FOR_RUN_AHEAD;
    for (size_t i = 0; i < placement->device_count; i++) {
        verdict_t one = judge(sched, placement->accounts[i], share);
        if (one == WAITS_FOR_RUN_AHEAD) return one;
        if (one != CAN_BE_GRANTED) verdict = one;
    }
    return verdict;
}

/* Its parts may have devices in common: the shares add up there. */
static share_t add_share(tow_account_t *account, const tow_ticket_part_t *part)
{
    account->scratch_steps_ += part->step_count;
    if (__builtin_add_overflow(account->scratch_bytes_, part->bytes,
                               &account->scratch_bytes_))
        account->scratch_bytes_ = UINT64_MAX;
    return (share_t){account->scratch_steps_, account->scratch_bytes_};
}

static void clear_shares(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            placement->accounts[i]->scratch_steps_ = 0;
            placement->accounts[i]->scratch_bytes_ = 0;
        }
    }
}

static verdict_t judge_parts(const tow_sched_t *sched,
                             const tow_ticket_t *ticket)
{
    verdict_t verdict = CAN_BE_GRANTED;
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_ticket_part_t *part = &ticket->parts[p];
        for (size_t i = 0; i < part->placement->device_count; i++) {
            tow_account_t *account = part->placement->accounts[i];
            verdict_t one = judge(sched, account, add_share(account, part));
            if (verdict != WAITS_FOR_RUN_AHEAD && one != CAN_BE_GRANTED)
                verdict = one;
        }
    }
    clear_shares(ticket);
    return verdict;
}

static const tow_placement_t *lost_placement(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++)
        if (ticket->parts[p].placement->lost) return ticket->parts[p].placement;
    return NULL;
}

static verdict_t examine(const tow_sched_t *sched, const tow_ticket_t *ticket)
{
    if (TOW_UNLIKELY(lost_placement(ticket) != NULL)) return CANNOT_RUN;
    if (TOW_LIKELY(ticket->part_count == 1))
        return judge_part(sched, &ticket->parts[0]);
    return judge_parts(sched, ticket);
}

/* -- Granting and finishing --------------------------------------------------- */

static void take_part(const tow_ticket_part_t *part)
{
    tow_placement_t *placement = part->placement;
    tow_placement_reserve(placement, part->bytes);
    for (size_t i = 0; i < placement->device_count; i++) {
        uint32_t *steps = &placement->accounts[i]->step_count;
        bool overflows =
            __builtin_add_overflow(*steps, part->step_count, steps);
        TOW_ASSERT(!overflows);
    }
}

static void give_back_part(const tow_ticket_part_t *part)
{
    tow_placement_t *placement = part->placement;
    tow_placement_unreserve(placement, part->bytes);
    for (size_t i = 0; i < placement->device_count; i++) {
        TOW_ASSERT(placement->accounts[i]->step_count >= part->step_count);
        placement->accounts[i]->step_count -= part->step_count;
    }
}

/* The client's next ticket is in the line-up before the owner hears of this
 * one: the owner may submit and withdraw. */
static void leave_queue(tow_sched_client_t *client, tow_ticket_t *ticket)
{
    TOW_ASSERT(client->place == CLIENT_CHOSEN);
    tow_sched_dequeue(ticket);
    client->place = CLIENT_ASIDE;
    tow_sched_settle(client);
}

static void grant(tow_sched_client_t *client, tow_ticket_t *ticket)
{
    tow_sched_t *sched = client->sched;
    const tow_sched_policy_t *policy = sched->options.policy;
    for (size_t p = 0; p < ticket->part_count; p++)
        take_part(&ticket->parts[p]);
    leave_queue(client, ticket);
    ticket->state = TOW_TICKET_GRANTED;
    ticket->number = ++sched->number_last;
    sched->stats.granted++;
    sched->stats.under_way_count++;
    if (policy->served != NULL) policy->served(policy->context, client, ticket);
    sched->options.grant(sched->options.context, ticket);
}

void tow_sched_finish(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_GRANTED);
    TOW_ASSERT(sched->stats.under_way_count > 0);
    for (size_t p = 0; p < ticket->part_count; p++)
        give_back_part(&ticket->parts[p]);
    ticket->state = TOW_TICKET_IDLE;
    sched->stats.finished++;
    sched->stats.under_way_count--;
    sched->has_room = true;
}

/* -- Refusing ----------------------------------------------------------------- */

/* On the first device that is short, with what all parts take of it. */
static tow_status_t describe_shortage(const tow_ticket_t *ticket)
{
    tow_status_t status = TOW_OK;
    for (size_t p = 0; p < ticket->part_count && status == TOW_OK; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            share_t share = add_share(account, &ticket->parts[p]);
            if (tow_account_fits(account, share.bytes)) continue;
            status = tow_placement_refusal_at(placement, i, share.bytes);
            break;
        }
    }
    clear_shares(ticket);
    TOW_ASSERT(status != TOW_OK);
    return status;
}

static tow_status_t describe_refusal(const tow_ticket_t *ticket)
{
    const tow_placement_t *lost = lost_placement(ticket);
    if (lost != NULL) return tow_status_retain(lost->error);
    return tow_status_annotate(describe_shortage(ticket),
                               "nothing is under way that could make room");
}

static void refuse(tow_sched_client_t *client, tow_ticket_t *ticket)
{
    tow_sched_t *sched = client->sched;
    tow_status_t status = describe_refusal(ticket);
    leave_queue(client, ticket);
    sched->stats.refused++;
    sched->options.refuse(sched->options.context, ticket, status);
}

/* -- The walk ----------------------------------------------------------------- */

static void wait_for_run_ahead(tow_sched_client_t *client,
                               const tow_ticket_t *ticket)
{
    tow_sched_t *sched = client->sched;
    for (size_t p = 0; p < ticket->part_count; p++) {
        tow_placement_t *placement = ticket->parts[p].placement;
        if (placement->claim_ == sched->walk) continue;
        placement->claim_ = sched->walk;
        for (size_t i = 0; i < placement->device_count; i++)
            placement->accounts[i]->claim_ = sched->walk;
    }
    tow_list_append(&sched->waiting, &client->waiting);
    client->place = CLIENT_WAITING;
}

/* The first ticket of a client that is on no list: what becomes of it? */
static void serve(tow_sched_client_t *client)
{
    tow_sched_t *sched = client->sched;
    tow_ticket_t *ticket = tow_sched_first_ticket(client);
    TOW_ASSERT(sched->chosen == NULL);
    client->place = CLIENT_CHOSEN;
    verdict_t verdict = examine(sched, ticket);
    if (verdict == CAN_BE_GRANTED)
        grant(client, ticket);
    else if (verdict == WAITS_FOR_RUN_AHEAD)
        wait_for_run_ahead(client, ticket);
    else if (verdict == WAITS_FOR_MEMORY && sched->stats.under_way_count > 0)
        sched->chosen = client;
    else
        refuse(client, ticket);
}

static void move_all(tow_list_t *to, tow_list_t *from)
{
    for (tow_list_t *link; (link = tow_list_pop_front(from)) != NULL;)
        tow_list_append(to, link);
}

/* Owners may withdraw any ticket when they hear of a grant, so nothing is
 * remembered from one to the next but the list of those not yet seen. */
static void retry_those_that_wait(tow_sched_t *sched)
{
    tow_list_t unseen;
    tow_list_init(&unseen);
    move_all(&unseen, &sched->waiting);
    sched->has_room = false;
    sched->walk++;
    tow_sched_client_t *chosen = sched->chosen;
    sched->chosen = NULL;
    if (chosen != NULL) serve(chosen);
    while (sched->chosen == NULL && !tow_list_is_empty(&unseen)) {
        tow_list_t *link = tow_list_pop_front(&unseen);
        serve(TOW_CONTAINER_OF(link, tow_sched_client_t, waiting));
    }
    move_all(&sched->waiting, &unseen);
}

/* NULL when nobody is left to ask about, or all wait for one. */
static tow_sched_client_t *choose(tow_sched_t *sched)
{
    lineup_t *ready = &sched->ready;
    if (sched->chosen != NULL || ready->count == 0) return NULL;
    const tow_sched_policy_t *policy = sched->options.policy;
    size_t index = policy->choose(
        policy->context,
        (const tow_sched_client_t *const *)tow_lineup_clients(ready),
        ready->count);
    return tow_lineup_take(ready, index);
}

void tow_sched_turn(tow_sched_t *sched)
{
    TOW_ASSERT(!sched->turning);
    sched->turning = true;
    for (;;) {
        if (sched->has_room) retry_those_that_wait(sched);
        tow_sched_client_t *client = choose(sched);
        if (client != NULL)
            serve(client);
        else if (!sched->has_room)
            break;
    }
    sched->turning = false;
}
