/* Between any two shardings on any two sets of devices, every element of every
 * target shard has exactly one correct source, and both ends agree. */
#include "ir/ir_testing_impl.h"

#include "ir/reshard.h"

#define DEVICES_MAX   1024
#define PROCESSES_MAX 16

/* One side of a case: an array on devices. */
typedef struct side {
    tow_sharding_t sharding;
    tow_shape_t shard;
    size_t count;
    tow_place_t places[DEVICES_MAX];
} side_t;

typedef struct reshard_case {
    tow_arena_t arena;
    tow_shape_t whole;
    side_t source, target;
    size_t process_count;
    tow_route_t routes[PROCESSES_MAX]; /* by process */
} case_t;

/* -- Cases ----------------------------------------------------------------- */

/* Devices of a slice: each process has some, in any order. */
static void place_by_chance(case_t *it, tow_random_t *random, side_t *side)
{
    uint32_t counts[PROCESSES_MAX] = {0};
    for (size_t i = 0; i < side->count; i++) {
        const uint32_t process =
            (uint32_t)tow_random_below(random, it->process_count);
        /* Of both slices the same devices, as far as they go. */
        side->places[i] = (tow_place_t){.process = process,
                                        .index = counts[process],
                                        .device = counts[process],
                                        .host = process / 3};
        counts[process]++;
    }
}

static void route_all(case_t *it)
{
    for (uint32_t process = 0; process < it->process_count; process++) {
        uint32_t own[2][DEVICES_MAX];
        tow_reshard_side_t sides[2];
        side_t *from[2] = {&it->source, &it->target};
        for (int k = 0; k < 2; k++) {
            size_t count = 0;
            for (uint32_t i = 0; i < from[k]->count; i++)
                if (from[k]->places[i].process == process) own[k][count++] = i;
            sides[k] = (tow_reshard_side_t){&from[k]->sharding, &from[k]->shard,
                                            from[k]->places, own[k], count};
        }
        must(tow_reshard_route(&sides[0], &sides[1], process, &it->arena,
                               &it->routes[process]));
    }
}

static void case_init(case_t *it, tow_random_t *random)
{
    static const tow_type_t types[] = {TOW_TYPE_S8, TOW_TYPE_F32, TOW_TYPE_S4,
                                       TOW_TYPE_F64};
    memset(it, 0, sizeof(*it));
    tow_arena_init(&it->arena, 0);
    const uint32_t rank = (uint32_t)tow_random_below(random, 4);
    it->source.sharding =
        ir_random_sharding_of(random, rank, &it->source.count);
    it->target.sharding =
        ir_random_sharding_of(random, rank, &it->target.count);
    it->whole.type = types[tow_random_below(random, TOW_COUNT_OF(types))];
    it->whole.rank = rank;
    for (uint32_t i = 0; i < rank; i++)
        it->whole.dims[i] = (int64_t)(it->source.sharding.parts[i] *
                                      it->target.sharding.parts[i] *
                                      (1 + tow_random_below(random, 2)));
    /* Fewer elements, where both still divide them. */
    for (uint32_t i = 0; i < rank; i++)
        for (int64_t by = 2; by <= 4; by++)
            if (it->whole.dims[i] / by % it->source.sharding.parts[i] == 0 &&
                it->whole.dims[i] / by % it->target.sharding.parts[i] == 0 &&
                it->whole.dims[i] % by == 0 && tow_random_below(random, 2))
                it->whole.dims[i] /= by;
    must(tow_sharding_shard(&it->source.sharding, &it->whole,
                            &it->source.shard));
    must(tow_sharding_shard(&it->target.sharding, &it->whole,
                            &it->target.shard));
    it->process_count = 1 + tow_random_below(random, PROCESSES_MAX);
    place_by_chance(it, random, &it->source);
    place_by_chance(it, random, &it->target);
    route_all(it);
}

/* -- Elements -------------------------------------------------------------- */

static int64_t element_count(const tow_shape_t *shape)
{
    int64_t count = 1;
    for (uint32_t i = 0; i < shape->rank; i++)
        count *= shape->dims[i];
    return count;
}

/* The index in the whole array of an element of a shard. */
static int64_t whole_element(const case_t *it, const side_t *side, size_t shard,
                             const int64_t *at)
{
    uint32_t index[TOW_RANK_MAX] = {0};
    int64_t element = 0;
    tow_sharding_part_of(&side->sharding, shard, index);
    for (uint32_t i = 0; i < it->whole.rank; i++)
        element = element * it->whole.dims[i] + index[i] * side->shard.dims[i] +
                  at[i];
    return element;
}

static int64_t linear(const tow_shape_t *shape, const int64_t *at)
{
    int64_t element = 0;
    for (uint32_t i = 0; i < shape->rank; i++)
        element = element * shape->dims[i] + at[i];
    return element;
}

static size_t find_shard(const side_t *side, uint32_t process, uint32_t index)
{
    for (size_t i = 0; i < side->count; i++)
        if (side->places[i].process == process &&
            side->places[i].index == index)
            return i;
    fail_msg("process %u has no shard %u", process, index);
    return 0;
}

/* Counts an element of a target if its source is correct. Returns whether the
 * piece is contiguous. */
static bool write_piece(const case_t *it, const tow_piece_t *piece,
                        size_t source, size_t target, uint8_t *written)
{
    const uint64_t element_bytes = (tow_type_bits(it->whole.type) + 7) / 8;
    int64_t from[TOW_RANK_MAX] = {0}, to[TOW_RANK_MAX] = {0};
    int64_t at[TOW_RANK_MAX] = {0};
    const tow_shape_t *shard = &it->target.shard;
    const int64_t first = linear(shard, piece->target_start);
    bool is_one_row = true;
    uint64_t count = 0;
    for (bool more = true; more; count++) {
        for (uint32_t i = 0; i < shard->rank; i++) {
            from[i] = piece->source_start[i] + at[i];
            to[i] = piece->target_start[i] + at[i];
            assert_in_range(from[i], 0, it->source.shard.dims[i] - 1);
            assert_in_range(to[i], 0, shard->dims[i] - 1);
        }
        assert_int_equal(whole_element(it, &it->source, source, from),
                         whole_element(it, &it->target, target, to));
        written[linear(shard, to)]++;
        is_one_row &= linear(shard, to) == first + (int64_t)count;
        more = false;
        for (uint32_t i = shard->rank; i-- > 0 && !more;) {
            more = ++at[i] < piece->extent[i];
            if (!more) at[i] = 0;
        }
    }
    assert_int_equal(piece->bytes, count * element_bytes);
    if (is_one_row && !it->routes[0].is_packed)
        assert_int_equal(piece->offset, (uint64_t)first * element_bytes);
    return is_one_row;
}

/* No replica is nearer; with equal shardings, the source is shard i. */
static void check_nearness(const case_t *it, size_t source, size_t target)
{
    if (tow_sharding_equal(&it->source.sharding, &it->target.sharding)) {
        assert_int_equal(source, target);
        return;
    }
    const tow_place_t *here = &it->target.places[target];
    const tow_place_t *chosen = &it->source.places[source];
    uint32_t index[TOW_RANK_MAX] = {0};
    tow_sharding_part_of(&it->source.sharding, source, index);
    for (uint32_t i = 0; i < it->source.sharding.replicas; i++) {
        const tow_place_t *other = &it->source.places[tow_sharding_device_of(
            &it->source.sharding, index, i)];
        if (other->host == here->host)
            assert_int_equal(chosen->host, here->host);
        if (other->process != here->process) continue;
        assert_int_equal(chosen->process, here->process);
        if (other->device == here->device)
            assert_int_equal(chosen->device, here->device);
    }
}

static bool is_sent(const case_t *it, uint32_t process,
                    const tow_piece_t *received)
{
    const tow_route_t *route = &it->routes[received->process];
    size_t found = 0;
    for (size_t i = 0; i < route->send_count; i++) {
        tow_piece_t sent = route->sends[i];
        if (sent.process != process) continue;
        sent.process = received->process;
        found += memcmp(&sent, received, sizeof(sent)) == 0;
    }
    return found == 1;
}

/* All that a process receives; returns how many pieces. */
static size_t check_receives(const case_t *it, uint32_t process,
                             bool *some_broken)
{
    const tow_route_t *route = &it->routes[process];
    const int64_t elements = element_count(&it->target.shard);
    uint64_t shard_bytes;
    size_t at = 0;
    must(tow_shape_bytes(&it->target.shard, &shard_bytes));
    for (uint32_t shard = 0; shard < route->target_count; shard++) {
        uint8_t *written = tow_calloc((size_t)elements + 1, 1);
        const size_t target = find_shard(&it->target, process, shard);
        uint64_t end = 0;
        assert_int_equal(route->target_devices[shard],
                         it->target.places[target].device);
        for (uint32_t number = 0; end < shard_bytes; number++, at++) {
            assert_true(at < route->receive_count);
            const tow_piece_t *piece = &route->receives[at];
            const size_t source =
                find_shard(&it->source, piece->process, piece->source_shard);
            assert_int_equal(piece->target_shard, shard);
            assert_int_equal(piece->number, number);
            assert_int_equal(piece->offset, end);
            *some_broken |= !write_piece(it, piece, source, target, written);
            check_nearness(it, source, target);
            assert_true(is_sent(it, process, piece));
            end = piece->offset + piece->bytes;
        }
        for (int64_t i = 0; i < elements; i++)
            assert_int_equal(written[i], 1);
        tow_free(written);
    }
    assert_int_equal(at, route->receive_count);
    return at;
}

static void check_case(const case_t *it)
{
    size_t received = 0, sent = 0;
    bool some_broken = false;
    for (uint32_t process = 0; process < it->process_count; process++) {
        received += check_receives(it, process, &some_broken);
        sent += it->routes[process].send_count;
        assert_int_equal(it->routes[process].is_packed,
                         it->routes[0].is_packed);
    }
    assert_int_equal(received, sent);
    assert_int_equal(it->routes[0].is_packed, some_broken);
}

static void every_element_arrives_once_and_from_its_place(void **state)
{
    (void)state;
    static case_t it;
    for (uint64_t seed = 0; seed < 400; seed++) {
        tow_random_t random;
        tow_random_init(&random, seed);
        case_init(&it, &random);
        check_case(&it);
        tow_arena_deinit(&it.arena);
    }
}

/* -- Load -------------------------------------------------------------- */

/* On separate hosts the loads of the replicas of a part differ by at most
 * one. */
static void replicas_share_the_load(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        tow_random_t random;
        tow_random_init(&random, seed);
        static side_t sides[2];
        uint32_t own[1] = {0};
        const uint32_t rank = (uint32_t)tow_random_below(&random, 3);
        uint32_t loads[DEVICES_MAX] = {0};
        tow_reshard_side_t given[2];
        tow_arena_t arena;
        tow_shape_t whole = {.type = TOW_TYPE_S8, .rank = rank};
        for (int k = 0; k < 2; k++)
            sides[k].sharding =
                ir_random_sharding_of(&random, rank, &sides[k].count);
        for (uint32_t i = 0; i < rank; i++)
            whole.dims[i] =
                sides[0].sharding.parts[i] * sides[1].sharding.parts[i];
        for (uint32_t k = 0; k < 2; k++) {
            must(tow_sharding_shard(&sides[k].sharding, &whole,
                                    &sides[k].shard));
            for (uint32_t i = 0; i < sides[k].count; i++)
                sides[k].places[i] =
                    (tow_place_t){.process = k * DEVICES_MAX + i,
                                  .host = k * DEVICES_MAX + i};
            given[k] = (tow_reshard_side_t){&sides[k].sharding, &sides[k].shard,
                                            sides[k].places, own, k};
        }
        tow_arena_init(&arena, 0);
        for (uint32_t i = 0; i < sides[1].count; i++) {
            tow_route_t route;
            own[0] = i;
            must(tow_reshard_route(&given[0], &given[1], DEVICES_MAX + i,
                                   &arena, &route));
            for (size_t at = 0; at < route.receive_count; at++)
                loads[route.receives[at].process]++;
        }
        for (size_t i = 0; i < sides[0].count; i++) {
            uint32_t index[TOW_RANK_MAX] = {0};
            tow_sharding_part_of(&sides[0].sharding, i, index);
            for (uint32_t k = 0; k < sides[0].sharding.replicas; k++) {
                const size_t other =
                    tow_sharding_device_of(&sides[0].sharding, index, k);
                assert_in_range(loads[i], 0, loads[other] + 1);
            }
        }
        tow_arena_deinit(&arena);
    }
}

/* -- Size ------------------------------------------------------------------ */

#define MANY 2048

static tow_route_t route_of_many(const char *from, const char *to,
                                 const tow_place_t *places, uint32_t process,
                                 tow_arena_t *arena)
{
    const tow_sharding_t source = sharding_of(from), target = sharding_of(to);
    const tow_shape_t whole = shape_of("f32[2048,2048]");
    tow_shape_t shards[2];
    uint32_t own[4];
    tow_route_t route;
    must(tow_sharding_check(&source, MANY));
    must(tow_sharding_check(&target, MANY));
    must(tow_sharding_shard(&source, &whole, &shards[0]));
    must(tow_sharding_shard(&target, &whole, &shards[1]));
    for (uint32_t i = 0; i < 4; i++)
        own[i] = 4 * process + i;
    const tow_reshard_side_t a = {&source, &shards[0], places, own, 4};
    const tow_reshard_side_t b = {&target, &shards[1], places, own, 4};
    must(tow_reshard_route(&a, &b, process, arena, &route));
    return route;
}

static void two_thousand_devices_take_no_more_pieces_than_they_must(
    void **state)
{
    (void)state;
    static tow_place_t places[MANY];
    tow_arena_t arena;
    for (uint32_t i = 0; i < MANY; i++)
        places[i] = (tow_place_t){i / 4, i % 4, i % 4, i / 8};
    tow_arena_init(&arena, 0);
    static const struct {
        const char *from, *to;
        size_t sends, receives;
    } cases[] = {
        {"2048x1", "2048x1", 4, 4},
        {"2048x1", "1024x2", 8, 8},
        {"2048x1", "1x2048", 4 * MANY, 4 * MANY},
        {"1x1*2048", "2048x1", 4, 4},
        {"1x1*2048", "1x1*2048", 4, 4},
        {"2048x1", "1x1*2048", 4 * MANY, 4 * MANY},
        {"64x32", "64x32 mesh 32x64 axes 1,0", 4, 4},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(cases); i++)
        for (uint32_t process = 0; process < 512; process += 73) {
            const tow_route_t route = route_of_many(cases[i].from, cases[i].to,
                                                    places, process, &arena);
            assert_int_equal(route.send_count, cases[i].sends);
            assert_int_equal(route.receive_count, cases[i].receives);
            tow_arena_reset(&arena);
        }
    tow_arena_deinit(&arena);
}

static void empty_arrays_take_no_pieces(void **state)
{
    (void)state;
    const tow_sharding_t sharding = sharding_of("2x1");
    const tow_sharding_t target = sharding_of("1x2");
    const tow_shape_t shapes[2] = {shape_of("f32[0,8]"), shape_of("f32[0,4]")};
    const tow_place_t places[2] = {{.index = 0}, {.index = 1, .device = 1}};
    const uint32_t own[2] = {0, 1};
    const tow_reshard_side_t from = {&sharding, &shapes[0], places, own, 2};
    const tow_reshard_side_t to = {&target, &shapes[1], places, own, 2};
    tow_arena_t arena;
    tow_route_t route;
    tow_arena_init(&arena, 0);
    must(tow_reshard_route(&from, &to, 0, &arena, &route));
    assert_int_equal(route.send_count + route.receive_count, 0);
    assert_int_equal(route.target_count, 2);
    assert_false(route.is_packed);
    tow_arena_deinit(&arena);
}

TOW_TEST_MAIN(
    cmocka_unit_test(every_element_arrives_once_and_from_its_place),
    cmocka_unit_test(replicas_share_the_load),
    cmocka_unit_test(two_thousand_devices_take_no_more_pieces_than_they_must),
    cmocka_unit_test(empty_arrays_take_no_pieces))
