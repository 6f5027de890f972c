/* Pieces of runs. A run whose estimate is long is granted in ranges of its
 * steps, so that others get the devices in between (sched/cut.h). Workers report
 * how far they are; a piece has ended when all have passed its end. */
#include "base/alloc.h"
#include "base/assert.h"
#include "controller/controller_impl.h"
#include "controller/object_impl.h"
#include "sched/cut.h"

/* -- Cutting --------------------------------------------------------------- */

void tow_ctl_program_measured(tow_ctl_program_t *program, uint32_t step_count,
                              uint64_t longest_ns)
{
    if (step_count == 0) return;
    tow_estimate_add(&program->estimate, longest_ns / step_count);
}

/* 0: unknown. */
static uint64_t step_ns(const tow_ctl_program_t *program)
{
    const int64_t ns = tow_estimate_ns(&program->estimate);
    return ns > 0 ? (uint64_t)ns : 0;
}

static tow_cut_t cut_of(const tow_ctl_program_t *program)
{
    return (tow_cut_t){.parts = program->step_parts,
                       .step_count = program->step_count,
                       .part_count = program->mapping_count,
                       .step_ns = step_ns(program),
                       .piece_steps = program->controller->options.piece_steps};
}

/* The next piece begins where the last one ended. */
static void cut_next(tow_ctl_run_t *run)
{
    tow_ctl_pieces_t *pieces = run->pieces;
    const tow_cut_t cut = cut_of(run->program);
    uint32_t *counts =
        pieces->step_counts + (size_t)pieces->next_slot * cut.part_count;
    pieces->next_end = tow_cut_next(&cut, pieces->next_first, counts);
    run->unit.ticket.next =
        (tow_run_piece_t){.step_counts = counts,
                          .step_ns = cut.step_ns,
                          .is_last = pieces->next_end == cut.step_count};
}

/* Without memory for pieces, the run is granted whole. */
static void begin_pieces(tow_ctl_run_t *run)
{
    const tow_ctl_program_t *program = run->program;
    const size_t counts = (TOW_SCHED_PIECES_MAX + 1) * program->mapping_count;
    tow_ctl_pieces_t *pieces =
        tow_calloc(1, sizeof(*pieces) + counts * sizeof(uint32_t));
    if (pieces == NULL) return;
    pieces->progress =
        tow_calloc(program->worker_count, sizeof(*pieces->progress));
    if (pieces->progress == NULL) {
        tow_free(pieces);
        return;
    }
    run->pieces = pieces;
    cut_next(run);
}

void tow_ctl_pieces_prepare(tow_ctl_run_t *run)
{
    const tow_cut_t cut = cut_of(run->program);
    if (run->pieces == NULL &&
        !tow_cut_is_whole(&cut, run->program->busiest_step_count))
        begin_pieces(run);
    run->unit.ticket.next.step_ns =
        run->pieces != NULL
            ? cut.step_ns
            : tow_cut_counted_ns(
                  &cut, run->program->lag_step_count,
                  tow_sched_run_ahead_ns(run->controller->sched));
}

/* -- Granting -------------------------------------------------------------- */

bool tow_ctl_pieces_remain(const tow_ctl_run_t *run)
{
    return run->pieces != NULL &&
           run->pieces->next_first < run->program->step_count;
}

tow_ctl_piece_t *tow_ctl_pieces_take(tow_ctl_run_t *run)
{
    tow_ctl_pieces_t *pieces = run->pieces;
    uint64_t *gang_number = &run->controller->runs.gang_number;
    TOW_ASSERT(pieces->under_way_count < TOW_SCHED_PIECES_MAX);
    tow_ctl_piece_t *piece = &pieces->under_way[pieces->under_way_count++];
    *piece = (tow_ctl_piece_t){
        .first = pieces->next_first,
        .end = pieces->next_end,
        .first_gang = *gang_number + 1 - pieces->next_first,
        .step_counts = run->unit.ticket.next.step_counts,
        .reporting_count = (uint32_t)run->program->worker_count};
    *gang_number += piece->end - piece->first;
    pieces->next_first = pieces->next_end;
    pieces->next_slot = (pieces->next_slot + 1) % (TOW_SCHED_PIECES_MAX + 1);
    if (tow_ctl_pieces_remain(run)) cut_next(run);
    return piece;
}

void tow_ctl_pieces_mark(tow_ctl_run_t *run, bool is_partly)
{
    if (run->is_partly == is_partly) return;
    run->is_partly = is_partly;
    for (size_t i = 0; i < run->argument_count; i++) {
        TOW_ASSERT(is_partly || run->arguments[i]->partly_count > 0);
        run->arguments[i]->partly_count += is_partly ? 1 : UINT32_MAX;
    }
}

/* -- Dependencies ---------------------------------------------------------- */

/* Its run is not granted completely: workers do not have it yet. */
static bool is_unplaced(const tow_object_t *object)
{
    return object->state == TOW_OBJECT_PENDING &&
           object->context != &tow_ctl_object_is_placed;
}

static bool holds_run(const tow_ctl_run_t *run)
{
    for (size_t i = 0; i < run->argument_count; i++) {
        const tow_object_t *object = run->arguments[i];
        if (is_unplaced(object)) return true;
        if (object->partly_count > 0 && run->program->arguments[i].consumed)
            return true;
    }
    return false;
}

bool tow_ctl_pieces_hold(const tow_ctl_unit_t *unit)
{
    if (unit->kind == UNIT_RUN) return holds_run((const tow_ctl_run_t *)unit);
    if (unit->kind != UNIT_ASSEMBLY) return false;
    tow_object_t *const *sources;
    size_t count;
    const tow_ticket_part_t *part;
    tow_ctl_assembly_needs((const tow_ctl_assembly_t *)unit, &sources, &count,
                           &part);
    for (size_t i = 0; i < count; i++)
        if (is_unplaced(sources[i])) return true;
    return false;
}

/* -- Progress -------------------------------------------------------------- */

tow_ctl_piece_t *tow_ctl_pieces_find(tow_ctl_run_t *run, uint32_t end)
{
    tow_ctl_pieces_t *pieces = run->pieces;
    for (uint32_t i = 0; pieces != NULL && i < pieces->under_way_count; i++)
        if (pieces->under_way[i].end == end) return &pieces->under_way[i];
    return NULL;
}

const tow_ctl_piece_t *tow_ctl_pieces_oldest(const tow_ctl_run_t *run)
{
    static const tow_ctl_piece_t none;
    if (run->pieces == NULL) return &run->whole;
    return run->pieces->under_way_count > 0 ? &run->pieces->under_way[0]
                                            : &none;
}

/* Of the part that has most of its steps. */
static uint32_t busiest_count(const tow_ctl_run_t *run,
                              const tow_ctl_piece_t *piece)
{
    const tow_ctl_program_t *program = run->program;
    const uint32_t *counts = piece->step_counts;
    uint32_t busiest = 0;
    for (size_t i = 0; i < program->mapping_count; i++)
        if (counts[i] > busiest) busiest = counts[i];
    return busiest;
}

static void end_oldest(tow_ctl_run_t *run)
{
    tow_ctl_pieces_t *pieces = run->pieces;
    const tow_ctl_piece_t *oldest = &pieces->under_way[0];
    tow_ctl_program_measured(run->program, busiest_count(run, oldest),
                             oldest->longest_ns);
    tow_free(pieces->under_way[0].numbers);
    pieces->under_way_count--;
    for (uint32_t i = 0; i < pieces->under_way_count; i++)
        pieces->under_way[i] = pieces->under_way[i + 1];
    tow_sched_piece_ended(run->controller->sched, &run->unit.ticket);
    tow_controller_touch(run->controller);
}

void tow_ctl_pieces_progress(tow_ctl_run_t *run, size_t index, uint32_t end,
                             uint64_t longest_ns)
{
    tow_ctl_pieces_t *pieces = run->pieces;
    tow_ctl_piece_t *last = tow_ctl_pieces_find(run, end);
    if (last == NULL || run->has_reported[index] ||
        end <= pieces->progress[index])
        return;
    if (longest_ns > last->longest_ns) last->longest_ns = longest_ns;
    for (uint32_t i = 0; i < pieces->under_way_count; i++) {
        tow_ctl_piece_t *piece = &pieces->under_way[i];
        if (piece->end <= pieces->progress[index] || piece->end > end) continue;
        TOW_ASSERT(piece->reporting_count > 0);
        piece->reporting_count--;
    }
    pieces->progress[index] = end;
    while (pieces->under_way_count > 0 &&
           pieces->under_way[0].reporting_count == 0)
        end_oldest(run);
}

tow_status_t tow_ctl_pieces_reported(tow_ctl_run_t *run, size_t index)
{
    const tow_ctl_program_t *program = run->program;
    if (tow_ctl_pieces_remain(run))
        return TOW_ERROR(TOW_INTERNAL,
                         "worker %s reports all %u steps of '%s', of which %u "
                         "are granted",
                         program->workers[index]->name, program->step_count,
                         program->name, run->pieces->next_first);
    tow_ctl_pieces_progress(run, index, program->step_count, 0);
    return TOW_OK;
}

void tow_ctl_pieces_free(tow_ctl_run_t *run)
{
    tow_ctl_pieces_t *pieces = run->pieces;
    if (pieces == NULL) return;
    for (uint32_t i = 0; i < pieces->under_way_count; i++)
        tow_free(pieces->under_way[i].numbers);
    tow_free(pieces->progress);
    tow_free(pieces);
    run->pieces = NULL;
}
