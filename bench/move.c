#include "bench/move.h"

#include <string.h>

#include "base/alloc.h"
#include "bench/harness.h"

static tow_array_type_t type_of_all(void)
{
    return (tow_array_type_t){.struct_size = sizeof(tow_array_type_t),
                              .type = TOW_TYPE_U8,
                              .rank = 1,
                              .dims = {TOW_BENCH_MOVE_BYTES}};
}

static tow_upload_options_t upload_of(const tow_bench_move_t *move)
{
    return (tow_upload_options_t){.struct_size = sizeof(tow_upload_options_t),
                                  .type = type_of_all(),
                                  .bytes = move->bytes,
                                  .size = TOW_BENCH_MOVE_BYTES};
}

static tow_status_t move_once(tow_bench_move_t *move, tow_array_t **out_array)
{
    TOW_RETURN_IF_ERROR(
        tow_program_run(move->program, &move->array, 1, out_array, 1));
    return tow_array_wait(*out_array, -1);
}

static tow_status_t put_once(tow_bench_move_t *move, tow_array_t **out_array)
{
    const tow_upload_options_t upload = upload_of(move);
    TOW_RETURN_IF_ERROR(tow_array_upload(move->slices[1], &upload, out_array));
    return tow_array_wait(*out_array, -1);
}

static tow_status_t time_of(tow_bench_move_t *move,
                            tow_status_t (*once)(tow_bench_move_t *move,
                                                 tow_array_t **out_array),
                            uint64_t count, double *out_seconds)
{
    tow_status_t status = TOW_OK;
    const int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < count && status == TOW_OK; i++) {
        tow_array_t *made = NULL;
        status = once(move, &made);
        tow_array_release(made);
    }
    *out_seconds =
        (double)(tow_bench_now_ns() - start_ns) * 1e-9 / (double)count;
    return status;
}

tow_status_t tow_bench_move_time(tow_bench_move_t *move, uint64_t count,
                                 double *out_seconds)
{
    return time_of(move, move_once, count, out_seconds);
}

tow_status_t tow_bench_put_time(tow_bench_move_t *move, uint64_t count,
                                double *out_seconds)
{
    return time_of(move, put_once, count, out_seconds);
}

/* -- Opening and closing --------------------------------------------------- */

static tow_status_t check(tow_bench_move_t *move)
{
    tow_array_t *moved = NULL;
    tow_status_t status = move_once(move, &moved);
    if (status == TOW_OK)
        status = tow_array_download(moved, 0, move->copy, TOW_BENCH_MOVE_BYTES);
    tow_array_release(moved);
    TOW_RETURN_IF_ERROR(status);
    if (memcmp(move->bytes, move->copy, TOW_BENCH_MOVE_BYTES) == 0)
        return TOW_OK;
    return TOW_ERROR(TOW_DATA_LOSS, "received bytes differ from the sent ones");
}

static tow_status_t open_slice(tow_bench_move_t *move, const tow_slice_t *all,
                               size_t index, tow_slice_t **out_slice)
{
    tow_device_t device = {.struct_size = sizeof(device)};
    TOW_RETURN_IF_ERROR(tow_slice_device(all, index, &device));
    const tow_slice_options_t one = {
        .struct_size = sizeof(one), .devices = &device.id, .device_count = 1};
    return tow_slice_open(move->client, &one, out_slice);
}

static tow_status_t open_slices(tow_bench_move_t *move)
{
    tow_slice_t *all = NULL;
    const tow_slice_options_t options = {.struct_size = sizeof(options)};
    TOW_RETURN_IF_ERROR(tow_slice_open(move->client, &options, &all));
    tow_status_t status = open_slice(move, all, 0, &move->slices[0]);
    if (status == TOW_OK)
        status = open_slice(move, all, tow_slice_device_count(all) - 1,
                            &move->slices[1]);
    tow_slice_release(all);
    return status;
}

static tow_status_t trace(tow_bench_move_t *move)
{
    const tow_array_type_t type = type_of_all();
    tow_array_t *array = NULL, *moved = NULL;
    TOW_RETURN_IF_ERROR(
        tow_program_create(move->client, "transfer", &move->program));
    TOW_RETURN_IF_ERROR(tow_program_argument(move->program, move->slices[0],
                                             &type, false, &array));
    tow_transfer_options_t options = {.struct_size = sizeof(options),
                                      .slice = move->slices[1]};
    tow_status_t status = tow_array_transfer(array, &options, &moved);
    if (status == TOW_OK) status = tow_program_result(move->program, moved);
    tow_array_release(moved);
    tow_array_release(array);
    TOW_RETURN_IF_ERROR(status);
    return tow_program_finish(move->program);
}

static tow_status_t make_bytes(tow_bench_move_t *move)
{
    move->bytes = tow_malloc(TOW_BENCH_MOVE_BYTES);
    move->copy = tow_malloc(TOW_BENCH_MOVE_BYTES);
    if (move->bytes == NULL || move->copy == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < TOW_BENCH_MOVE_BYTES; i++)
        move->bytes[i] = (uint8_t)(i * 167 + (i >> 12));
    memset(move->copy, 0, TOW_BENCH_MOVE_BYTES);
    return TOW_OK;
}

static tow_status_t open_all(tow_bench_move_t *move,
                             const tow_client_options_t *client)
{
    TOW_RETURN_IF_ERROR(make_bytes(move));
    TOW_RETURN_IF_ERROR(tow_client_open(client, &move->client));
    TOW_RETURN_IF_ERROR(open_slices(move));
    TOW_RETURN_IF_ERROR(trace(move));
    const tow_upload_options_t upload = upload_of(move);
    TOW_RETURN_IF_ERROR(
        tow_array_upload(move->slices[0], &upload, &move->array));
    return check(move);
}

tow_status_t tow_bench_move_open(const tow_client_options_t *client,
                                 tow_bench_move_t *out_move)
{
    *out_move = (tow_bench_move_t){0};
    tow_status_t status = open_all(out_move, client);
    if (status != TOW_OK) tow_bench_move_close(out_move);
    return status;
}

void tow_bench_move_close(tow_bench_move_t *move)
{
    tow_array_release(move->array);
    tow_program_release(move->program);
    tow_slice_release(move->slices[0]);
    tow_slice_release(move->slices[1]);
    tow_client_release(move->client);
    tow_free(move->bytes);
    tow_free(move->copy);
    *move = (tow_bench_move_t){0};
}
