/* What becomes of every wrong use: a status and a sentence, no crash, no hang, no leak. misuse URL PID [SECTION]
 *
 * PID is that of the dataplane, which is stopped, and killed in the last section. Each line is a case with what was returned. */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rowmill.h>

/* More than all workers together grant a client of four credits each, where there are two of them. */
enum { ROOM = 12 };

static int failures;
static rowmill_table table; /* the model's first */

/* The call gave `got`; it should give `want` with `part` in its sentence. */
static void expect(const char *name, int want, int got, const char *part) {
    const char *text = got == ROWMILL_OK ? "" : rowmill_error_text();
    int good = got == want && (got == ROWMILL_OK || (*text != 0 && strstr(text, part) != NULL));
    printf("%-4s  %-34s  %s%s%s\n", good ? "ok" : "FAIL", name, rowmill_status_name(got), *text ? ": " : "", text);
    if (!good) {
        printf("      wanted %s with \"%s\"\n", rowmill_status_name(want), part);
        failures++;
    }
}

/* What has to be so. */
static void holds(const char *name, int so) {
    expect(name, ROWMILL_OK, so ? ROWMILL_OK : ROWMILL_INTERNAL, "");
}

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        printf("FAIL  %s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

static int entries(const char *folder) {
    DIR *directory = opendir(folder);
    int count = 0;
    while (directory != NULL && readdir(directory) != NULL)
        count++;
    if (directory != NULL)
        closedir(directory);
    return count;
}

/* A connection with a schema of one feature and a region with room for some answers of two bags. */
typedef struct {
    rowmill_client *client;
    rowmill_schema *schema;
    rowmill_region *region;
    void *memory;
    uint64_t bytes;
} place;

static rowmill_feature feature(const char *of, uint32_t pooling) {
    return (rowmill_feature){.size = sizeof(rowmill_feature), .pooling = pooling, .name = "clicked", .table = of};
}

static place open_place(const char *url) {
    place p;
    rowmill_options options = {.size = sizeof options, .name = "misuse", .credits = 4};
    must(rowmill_connect(url, &options, &p.client), "connect");
    size_t count;
    table.size = sizeof table;
    must(rowmill_tables(p.client, &table, 1, &count), "tables");
    rowmill_feature one = feature(table.name, ROWMILL_SUM);
    must(rowmill_bind(p.client, &one, 1, 2, &p.schema), "bind");
    must(rowmill_answer_bytes(p.schema, 2, &p.bytes), "answer_bytes");
    must(rowmill_region_create(p.client, ROOM * p.bytes, &p.region, &p.memory), "region_create");
    return p;
}

static void close_place(place *p) {
    must(rowmill_close(p->client), "close");
    must(rowmill_schema_free(p->schema), "schema_free");
    must(rowmill_region_free(p->region), "region_free");
}

/* A sound request of two bags, of which each case spoils something. */
typedef struct {
    int64_t ids[3], lengths[2], offsets[3];
    rowmill_jagged part;
    rowmill_batch batch;
    rowmill_target target;
    rowmill_request request;
    rowmill_ticket ticket;
} sound;

static sound *fresh(sound *s, const place *p) {
    *s = (sound){.ids = {1, 2, 3}, .lengths = {2, 1}, .offsets = {0, 2, 3}};
    s->part = (rowmill_jagged){.size = sizeof s->part, .ids = s->ids, .n_ids = 3, .id_bits = 64,
                               .lengths = s->lengths, .n_divisions = 2, .division_bits = 64};
    s->batch = (rowmill_batch){.size = sizeof s->batch, .bags = 2, .parts = &s->part, .n_parts = 1};
    s->target = (rowmill_target){.size = sizeof s->target, .region = p->region};
    s->request = (rowmill_request){.size = sizeof s->request};
    return s;
}

static int submit(const place *p, sound *s) {
    return rowmill_submit(p->client, p->schema, &s->batch, &s->target, &s->request, &s->ticket);
}

static int answered(const place *p, rowmill_ticket ticket, int64_t timeout_us, rowmill_answer *answer) {
    *answer = (rowmill_answer){.size = sizeof *answer};
    return rowmill_wait(p->client, ticket, timeout_us, answer);
}

static void connecting(const char *url) {
    rowmill_client *client;
    rowmill_options options = {.size = sizeof options, .waiting = 9};
    struct {
        rowmill_options known;
        uint64_t unknown;
    } newer = {{.size = sizeof newer}, 1};
    expect("connect: url NULL", ROWMILL_INVALID, rowmill_connect(NULL, NULL, &client), "url is NULL");
    expect("connect: place for the client NULL", ROWMILL_INVALID, rowmill_connect(url, NULL, NULL), "client is NULL");
    expect("connect: another scheme", ROWMILL_CONNECT, rowmill_connect("http://a", NULL, &client), "supports shm:");
    expect("connect: nobody there", ROWMILL_CONNECT, rowmill_connect("shm:/nowhere.sock", NULL, &client), "is rowmilld running");
    expect("connect: url not in UTF-8", ROWMILL_INVALID, rowmill_connect("shm:/\xff", NULL, &client), "UTF-8");
    expect("connect: unknown way to wait", ROWMILL_INVALID, rowmill_connect(url, &options, &client), "waiting is 9");
    options.size = 0;
    expect("connect: size not set", ROWMILL_INVALID, rowmill_connect(url, &options, &client), "sizeof(rowmill_options)");
    expect("connect: field of a newer header", ROWMILL_INVALID, rowmill_connect(url, &newer.known, &client), "does not know");
    newer.unknown = 0;
    must(rowmill_connect(url, &newer.known, &client), "a newer header whose new field is not used");
    must(rowmill_close(client), "close");
}

static void handles(const place *p) {
    sound s;
    int number = 0;
    rowmill_client *stray = (rowmill_client *)&number;
    expect("handle: NULL", ROWMILL_INVALID, rowmill_cancel(NULL, 1), "the client is NULL");
    expect("handle: a pointer to something", ROWMILL_INVALID, rowmill_cancel(stray, 1), "no handle of librowmill");
    expect("handle: a schema as client", ROWMILL_INVALID, rowmill_cancel((rowmill_client *)p->schema, 1), "a schema was given");
    fresh(&s, p)->target.region = NULL;
    expect("handle: no region in the target", ROWMILL_INVALID, submit(p, &s), "the region is NULL");
}

static void schemas(const place *p) {
    rowmill_schema *schema;
    rowmill_layout layout = {.size = sizeof layout};
    uint64_t bytes;
    rowmill_feature one = feature(table.name, ROWMILL_SUM), two[2] = {one, one};
    expect("bind: features NULL", ROWMILL_INVALID, rowmill_bind(p->client, NULL, 1, 2, &schema), "features is NULL");
    expect("bind: no features", ROWMILL_INVALID, rowmill_bind(p->client, &one, 0, 2, &schema), "without features");
    expect("bind: too many features", ROWMILL_INVALID, rowmill_bind(p->client, &one, 257, 2, &schema), "at most 256");
    expect("bind: max_batch 0", ROWMILL_INVALID, rowmill_bind(p->client, &one, 1, 0, &schema), "max_batch is 0");
    one = feature("absent", ROWMILL_SUM);
    expect("bind: unknown table", ROWMILL_UNKNOWN_TABLE, rowmill_bind(p->client, &one, 1, 2, &schema), "list the tables");
    one = feature(table.name, 9);
    expect("bind: unknown pooling", ROWMILL_INVALID, rowmill_bind(p->client, &one, 1, 2, &schema), "features[0].pooling is 9");
    one = feature(table.name, ROWMILL_SUM);
    one.output = 9;
    expect("bind: unknown output", ROWMILL_INVALID, rowmill_bind(p->client, &one, 1, 2, &schema), "features[0].output is 9");
    one = feature(NULL, ROWMILL_SUM);
    expect("bind: table NULL", ROWMILL_INVALID, rowmill_bind(p->client, &one, 1, 2, &schema), "features[0].table is NULL");
    one = feature(table.name, ROWMILL_NO_POOLING);
    expect("bind: no pooling, no max_ids", ROWMILL_INVALID, rowmill_bind(p->client, &one, 1, 2, &schema), "max_ids is 0");
    one.max_ids = 8;
    expect("bind: no pooling, no stride", ROWMILL_INVALID, rowmill_bind(p->client, &one, 1, 2, &schema), "has no stride");
    two[0].stride = two[1].stride = 4 * table.dim;
    expect("bind: outputs overlap", ROWMILL_OVERLAPPING_OUTPUTS, rowmill_bind(p->client, two, 2, 2, &schema), "overlap");
    two[1].size = 40;
    expect("bind: sizes differ", ROWMILL_INVALID, rowmill_bind(p->client, two, 2, 2, &schema), "features[1]: its size is 40");
    expect("layout: no such feature", ROWMILL_INVALID, rowmill_schema_layout(p->schema, 1, &layout), "no feature 1");
    expect("answer_bytes: too many bags", ROWMILL_INVALID, rowmill_answer_bytes(p->schema, 3, &bytes), "max_batch of 2");
}

static void requests(const place *p, const place *other) {
    sound s;
    rowmill_answer answer;
    rowmill_ticket none = 0;
    float weights[3] = {1, 1, 1};
    uint32_t column = 1;
    expect("submit: batch NULL", ROWMILL_INVALID,
           rowmill_submit(p->client, p->schema, NULL, &fresh(&s, p)->target, NULL, &none), "batch is NULL");
    expect("submit: target NULL", ROWMILL_INVALID,
           rowmill_submit(p->client, p->schema, &fresh(&s, p)->batch, NULL, NULL, &none), "target is NULL");
    fresh(&s, p)->batch.bags = 0;
    expect("batch: 0 bags", ROWMILL_INVALID, submit(p, &s), "a batch of 0 bags");
    fresh(&s, p)->batch.bags = 3;
    expect("batch: more bags than max_batch", ROWMILL_INVALID, submit(p, &s), "larger max_batch");
    fresh(&s, p)->batch.n_parts = 0;
    expect("batch: a part is missing", ROWMILL_INVALID, submit(p, &s), "0 features but the schema 1");
    fresh(&s, p)->batch.layout = 7;
    expect("batch: unknown layout", ROWMILL_INVALID, submit(p, &s), "batch.layout is 7");
    fresh(&s, p)->batch.layout = ROWMILL_TENSOR;
    s.batch.columns = &column;
    s.batch.n_columns = 1;
    expect("batch: column that is not there", ROWMILL_INVALID, submit(p, &s), "column 1 is not there");
    fresh(&s, p)->part.ids = NULL;
    expect("part: ids NULL", ROWMILL_INVALID, submit(p, &s), "ids is NULL, but has 3");
    fresh(&s, p)->part.id_bits = 16;
    expect("part: ids of 16 bits", ROWMILL_INVALID, submit(p, &s), "32 or 64");
    fresh(&s, p)->part.offsets = s.offsets;
    expect("part: lengths and offsets", ROWMILL_INVALID, submit(p, &s), "lengths or offsets");
    fresh(&s, p)->part.n_divisions = 1;
    expect("part: a length is missing", ROWMILL_INVALID, submit(p, &s), "1 lengths for 2 bags");
    fresh(&s, p)->lengths[0] = 5;
    expect("part: lengths don't add up", ROWMILL_INVALID, submit(p, &s), "add up to 6 but 3 ids");
    fresh(&s, p)->lengths[1] = -1;
    expect("part: negative length", ROWMILL_INVALID, submit(p, &s), "must not be negative");
    fresh(&s, p)->part.lengths = NULL;
    s.part.offsets = s.offsets;
    s.part.n_divisions = 3;
    s.offsets[1] = 4;
    expect("part: falling offsets", ROWMILL_INVALID, submit(p, &s), "never fall");
    fresh(&s, p)->part.weights = weights;
    expect("part: weights that are not wanted", ROWMILL_INVALID, submit(p, &s), "takes no weights");
    fresh(&s, p)->part.size = 8;
    expect("part: size too small", ROWMILL_INVALID, submit(p, &s), "sizeof(rowmill_jagged)");
    fresh(&s, p)->target.offset = ROOM * p->bytes;
    expect("target: outside the region", ROWMILL_INVALID, submit(p, &s), "stay inside");
    fresh(&s, p)->target.offset = 2;
    expect("target: misaligned", ROWMILL_INVALID, submit(p, &s), "no multiple of");
    fresh(&s, p)->request.flags = 8;
    expect("request: unknown flag", ROWMILL_INVALID, submit(p, &s), "request.flags is 8");
    fresh(&s, p)->request.generation = 99;
    must(submit(p, &s), "submit");
    expect("request: generation not there", ROWMILL_RETRY, answered(p, s.ticket, -1, &answer), "newest generation");

    fresh(&s, other);
    expect("client A, region of client B", ROWMILL_INVALID, submit(p, &s), "not one of this client");
    fresh(&s, p);
    int status = rowmill_submit(p->client, other->schema, &s.batch, &s.target, NULL, &s.ticket);
    expect("client A, schema of client B", ROWMILL_INVALID, status, "not one of this client");
    must(submit(p, fresh(&s, p)), "submit");
    expect("client B, ticket of client A", ROWMILL_INVALID, answered(other, s.ticket, -1, &answer), "another client's");
    must(answered(p, s.ticket, -1, &answer), "wait");
    expect("wait: answer taken before", ROWMILL_INVALID, answered(p, s.ticket, -1, &answer), "was taken");
    rowmill_request ahead = {.size = sizeof ahead, .wait_us = 5};
    expect("prefetch: a wait", ROWMILL_INVALID, rowmill_prefetch(p->client, p->schema, &s.batch, &ahead), "request.wait_us is 5");
    ahead = (rowmill_request){.size = sizeof ahead, .flags = ROWMILL_PARTIALS};
    expect("prefetch: a flag", ROWMILL_INVALID, rowmill_prefetch(p->client, p->schema, &s.batch, &ahead), "request.flags");
    expect("prefetch: no batch", ROWMILL_INVALID, rowmill_prefetch(p->client, p->schema, NULL, NULL), "batch");
    for (int i = 0; i < 1000; i++) {
        int status = rowmill_prefetch(p->client, p->schema, &s.batch, NULL);
        if (status != ROWMILL_AGAIN)
            must(status, "prefetch");
    }
    fresh(&s, p)->request.wait_us = 10 * 1000 * 1000; /* for one of their slots */
    must(submit(p, &s), "submit");
    must(answered(p, s.ticket, -1, &answer), "wait");
    expect("cancel: answer taken before", ROWMILL_INVALID, rowmill_cancel(p->client, s.ticket), "was taken");

    fresh(&s, p)->ids[2] = (int64_t)table.rows;
    must(submit(p, &s), "submit");
    expect("id out of range", ROWMILL_ID_OUT_OF_RANGE, answered(p, s.ticket, -1, &answer), "`clicked`, feature 0, position 2");
    if (answer.feature != 0 || answer.position != 2)
        expect("id out of range: its place", ROWMILL_OK, ROWMILL_INTERNAL, "");
    fresh(&s, p)->ids[0] = -4;
    must(submit(p, &s), "submit");
    expect("id negative", ROWMILL_ID_NEGATIVE, answered(p, s.ticket, -1, &answer), "position 0");

    fresh(&s, p);
    s.lengths[0] = s.lengths[1] = 0;
    s.part.n_ids = 0;
    s.part.ids = NULL;
    memset(p->memory, 1, p->bytes);
    must(submit(p, &s), "submit");
    expect("no ids at all", ROWMILL_OK, answered(p, s.ticket, -1, &answer), "");
    for (uint64_t i = 0; i < p->bytes; i++)
        if (((char *)p->memory)[i] != 0) {
            expect("no ids at all: zeros", ROWMILL_OK, ROWMILL_INTERNAL, "");
            break;
        }
}

static void regions(const place *p) {
    rowmill_region *region;
    void *memory;
    expect("region: 0 bytes", ROWMILL_INVALID, rowmill_region_create(p->client, 0, &region, &memory), "0 bytes");
    expect("region: too large", ROWMILL_INVALID, rowmill_region_create(p->client, UINT64_MAX, &region, &memory), "limit");
    must(rowmill_region_create(p->client, 4096, &region, &memory), "region_create");
    rowmill_region_info info = {.size = sizeof info};
    must(rowmill_region_describe(region, &info), "region_describe");
    holds("region: described",
          info.memory == memory && info.bytes == 4096 && info.callers == 0 && info.way == ROWMILL_WAY_DIRECT);
    must(rowmill_region_free(region), "region_free");
    expect("region: freed twice", ROWMILL_INVALID, rowmill_region_free(region), "was freed");
    expect("region: NULL freed", ROWMILL_OK, rowmill_region_free(NULL), "");
}

/* Memory of the caller's. */
static void memories(const place *p) {
    enum { PAGE = 4096 };
    static const float constant[1024] = {1};
    char *map = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || munmap(map + 2 * PAGE, PAGE) != 0 || mprotect(map + PAGE, PAGE, PROT_READ) != 0) {
        printf("FAIL  mmap\n");
        exit(EXIT_FAILURE);
    }
    rowmill_region *region, *other;
    rowmill_region_options options = {.size = sizeof options, .flags = ROWMILL_NO_COPIES};
    rowmill_region_info info = {.size = sizeof info};
    expect("memory: NULL", ROWMILL_INVALID, rowmill_region_register(p->client, NULL, PAGE, NULL, &region), "memory is NULL");
    expect("memory: no place for the region", ROWMILL_INVALID, rowmill_region_register(p->client, map, PAGE, NULL, NULL), "NULL");
    expect("memory: 0 bytes", ROWMILL_INVALID, rowmill_region_register(p->client, map, 0, NULL, &region), "0 bytes");
    expect("memory: misaligned", ROWMILL_INVALID, rowmill_region_register(p->client, map + 2, 64, NULL, &region), "no multiple of the 4");
    expect("memory: round the world", ROWMILL_INVALID, rowmill_region_register(p->client, map, UINT64_MAX, NULL, &region),
           "more than there is memory");
    expect("memory: read-only", ROWMILL_INVALID, rowmill_region_register(p->client, map + PAGE, 64, NULL, &region), "read-only");
    expect("memory: read-only at its end", ROWMILL_INVALID, rowmill_region_register(p->client, map, PAGE + 4, NULL, &region),
           "read-only");
    expect("memory: not mapped", ROWMILL_INVALID, rowmill_region_register(p->client, map + 2 * PAGE, 64, NULL, &region), "not mapped");
    expect("memory: a constant", ROWMILL_INVALID, rowmill_region_register(p->client, (void *)constant, 64, NULL, &region), "read-only");
    expect("memory: without copies over shm", ROWMILL_INVALID, rowmill_region_register(p->client, map, PAGE, &options, &region),
           "ROWMILL_NO_COPIES");
    options.flags = 2;
    expect("memory: unknown flag", ROWMILL_INVALID, rowmill_region_register(p->client, map, PAGE, &options, &region), "options.flags");

    /* Answers end where the memory does, not where the library's own, of whole cache lines, would. */
    uint64_t bytes = p->bytes + 4;
    memset(map, 0x5a, PAGE);
    must(rowmill_region_register(p->client, map, bytes, NULL, &region), "region_register");
    expect("memory: registered twice", ROWMILL_INVALID, rowmill_region_register(p->client, map + 64, 64, NULL, &other), "overlaps");
    must(rowmill_region_describe(region, &info), "region_describe");
    holds("memory: described",
          info.memory == map && info.bytes == bytes && info.callers == 1 && info.way == ROWMILL_WAY_COPIED);
    sound s;
    rowmill_answer answer;
    fresh(&s, p)->target.region = region;
    s.target.offset = 8;
    expect("memory: beyond its end", ROWMILL_INVALID, submit(p, &s), "stay inside");
    s.target.offset = UINT64_MAX - 3;
    expect("memory: far beyond its end", ROWMILL_INVALID, submit(p, &s), "stay inside");
    s.target.offset = 4;
    must(submit(p, &s), "submit");
    expect("memory: freed with a request in flight", ROWMILL_INVALID, rowmill_region_free(region), "release them first");
    must(answered(p, s.ticket, -1, &answer), "wait");
    must(submit(p, fresh(&s, p)), "submit");
    must(answered(p, s.ticket, -1, &answer), "wait");
    int right = memcmp(map + 4, p->memory, p->bytes) == 0;
    for (int at = 0; at < PAGE; at++)
        right &= (at >= 4 && at < 4 + (int)p->bytes) || map[at] == 0x5a;
    holds("memory: the answer, and nothing beside it", right);
    must(rowmill_region_free(region), "region_free");
    expect("memory: freed twice", ROWMILL_INVALID, rowmill_region_free(region), "was freed");
    expect("memory: described when freed", ROWMILL_INVALID, rowmill_region_describe(region, &info), "was freed");
    s.target.region = region;
    expect("memory: a target when freed", ROWMILL_INVALID, submit(p, &s), "was freed");
    /* Rows that are not pooled: as many as there are ids. What is behind them in their block stays. */
    rowmill_feature rows = feature(table.name, ROWMILL_NO_POOLING);
    rows.max_ids = 4;
    rows.stride = 4 * table.dim + 64;
    rowmill_schema *schema;
    must(rowmill_bind(p->client, &rows, 1, 2, &schema), "bind");
    memset(map, 0x5a, PAGE);
    memset(p->memory, 0x5a, ROOM * p->bytes);
    must(rowmill_region_register(p->client, map, PAGE, NULL, &region), "registered again");
    for (int round = 0; round < 2; round++) {
        fresh(&s, p)->target.region = round == 0 ? region : p->region;
        must(rowmill_submit(p->client, schema, &s.batch, &s.target, NULL, &s.ticket), "submit");
        must(answered(p, s.ticket, -1, &answer), "wait");
    }
    holds("memory: rows, and nothing beside them",
          map[0] != 0x5a && memcmp(map, p->memory, 3 * rows.stride + 64) == 0);
    must(rowmill_region_free(region), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
    munmap(map, 2 * PAGE);
}

/* The deadline passes before the work is done. */
static void expired(const place *p) {
    enum { BAGS = 1024, IDS = 64 };
    static uint32_t ids[BAGS * IDS], lengths[BAGS];
    for (int bag = 0; bag < BAGS; bag++)
        lengths[bag] = IDS;
    rowmill_feature one = feature(table.name, ROWMILL_SUM);
    rowmill_schema *schema;
    rowmill_region *region;
    void *memory;
    uint64_t bytes;
    must(rowmill_bind(p->client, &one, 1, BAGS, &schema), "bind");
    must(rowmill_answer_bytes(schema, BAGS, &bytes), "answer_bytes");
    must(rowmill_region_create(p->client, bytes, &region, &memory), "region_create");
    rowmill_jagged part = {.size = sizeof part, .ids = ids, .n_ids = BAGS * IDS, .id_bits = 32,
                           .lengths = lengths, .n_divisions = BAGS, .division_bits = 32};
    rowmill_batch batch = {.size = sizeof batch, .bags = BAGS, .parts = &part, .n_parts = 1};
    rowmill_target target = {.size = sizeof target, .region = region};
    rowmill_request request = {.size = sizeof request, .deadline_us = 1};
    rowmill_ticket ticket;
    rowmill_answer answer;
    must(rowmill_submit(p->client, schema, &batch, &target, &request, &ticket), "submit");
    expect("deadline passed", ROWMILL_EXPIRED, answered(p, ticket, -1, &answer), "deadline");
    holds("deadline passed: in the answer", answer.status == ROWMILL_EXPIRED);
    must(rowmill_submit(p->client, schema, &batch, &target, NULL, &ticket), "submit");
    expect("the same without one", ROWMILL_OK, answered(p, ticket, -1, &answer), "");
    must(rowmill_region_free(region), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
}

/* Stops all threads of a process; the signal alone takes effect some time later. */
static void stop(pid_t process) {
    kill(process, SIGSTOP);
    char path[64], line[512];
    for (int running = 1; running > 0; usleep(1000)) {
        running = 0;
        snprintf(path, sizeof path, "/proc/%d/task", (int)process);
        DIR *threads = opendir(path);
        for (struct dirent *one; threads != NULL && (one = readdir(threads)) != NULL;) {
            snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)process, one->d_name);
            FILE *file = fopen(path, "r");
            const char *end = file != NULL && fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
            running += end != NULL && strncmp(end, ") T", 3) != 0;
            if (file != NULL)
                fclose(file);
        }
        if (threads != NULL)
            closedir(threads);
    }
}

typedef struct {
    const place *p;
    rowmill_ticket ticket;
    int status;
} waiter;

/* Sends a request, and waits for as long as it takes until there is a slot for it. */
static void *send_patiently(void *argument) {
    waiter *w = argument;
    sound s;
    fresh(&s, w->p)->target.offset = (ROOM - 1) * w->p->bytes;
    s.request.wait_us = 60 * 1000 * 1000;
    w->status = submit(w->p, &s);
    w->ticket = s.ticket;
    return NULL;
}

static void *wait_in_person(void *argument) {
    waiter *w = argument;
    rowmill_answer answer;
    do
        w->status = answered(w->p, w->ticket, -1, &answer);
    while (w->status == ROWMILL_INVALID); /* the other thread was looking whether this one waits */
    return NULL;
}

/* With a dataplane that does not go on. */
static void stopped(const char *url, const place *p, pid_t dataplane) {
    sound s[ROOM];
    rowmill_answer answer;
    int status = ROWMILL_OK, sent = 0;
    rowmill_options impatient = {.size = sizeof impatient, .name = "impatient", .reply_limit_us = 200 * 1000};
    rowmill_client *client, *none;
    while ((status = rowmill_connect(url, &impatient, &client)) == ROWMILL_TIMEOUT)
        ; /* this machine is slow */
    must(status, "connect");
    stop(dataplane);
    rowmill_feature one = feature(table.name, ROWMILL_SUM);
    rowmill_schema *schema;
    rowmill_region *region;
    void *memory;
    expect("stopped: connect", ROWMILL_TIMEOUT, rowmill_connect(url, &impatient, &none), "did not answer within");
    expect("stopped: bind", ROWMILL_TIMEOUT, rowmill_bind(client, &one, 1, 2, &schema), "did not answer within");
    expect("stopped: region", ROWMILL_TIMEOUT, rowmill_region_create(client, 4096, &region, &memory), "did not answer within");
    for (; sent < ROOM - 1; sent++) {
        fresh(&s[sent], p)->target.offset = sent * p->bytes;
        if ((status = submit(p, &s[sent])) != ROWMILL_OK)
            break;
    }
    expect("stopped: all slots in flight", ROWMILL_AGAIN, status, "poll for answers");
    sound again;
    fresh(&again, p);
    again.target.offset = (ROOM - 1) * p->bytes;
    again.request.wait_us = 1000;
    expect("stopped: no slot within 1 ms", ROWMILL_AGAIN, submit(p, &again), "poll for answers");
    expect("stopped: wait for 1 ms", ROWMILL_TIMEOUT, answered(p, s[0].ticket, 1000, &answer), "still in flight");
    expect("stopped: region freed", ROWMILL_INVALID, rowmill_region_free(p->region), "release them first");
    waiter w = {p, s[1].ticket, ROWMILL_OK};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_in_person, &w);
    do {
        usleep(1000);
        status = answered(p, s[1].ticket, 0, &answer);
    } while (status == ROWMILL_TIMEOUT); /* until the thread waits */
    expect("stopped: two threads wait for one", ROWMILL_INVALID, status, "another thread waits");
    expect("stopped: cancelled while waited for", ROWMILL_OK, rowmill_cancel(p->client, s[1].ticket), "");
    /* The other thread takes its answer, which gives room for one request more. */
    waiter patient = {p, 0, ROWMILL_INTERNAL};
    pthread_t sender;
    pthread_create(&sender, NULL, send_patiently, &patient);
    kill(dataplane, SIGCONT);
    pthread_join(thread, NULL);
    pthread_join(sender, NULL);
    expect("stopped: sent when there was a slot", ROWMILL_OK, patient.status, "");
    if (patient.status == ROWMILL_OK)
        must(answered(p, patient.ticket, -1, &answer), "wait");
    while ((status = rowmill_bind(client, &one, 1, 2, &schema)) == ROWMILL_TIMEOUT)
        ;
    expect("stopped: bound when it goes on", ROWMILL_OK, status, "");
    must(rowmill_schema_free(schema), "schema_free");
    must(rowmill_close(client), "close");
    expect("stopped: what the waiter was told", ROWMILL_OK,
           w.status == ROWMILL_CANCELLED ? ROWMILL_OK : w.status, "");
    for (int i = 0; i < sent; i++)
        if (i != 1)
            must(answered(p, s[i].ticket, -1, &answer), "wait");
}

static void forked(const char *url, const place *p) {
    sound s;
    rowmill_answer answer = {.size = sizeof answer};
    int fd = -1, got;
    must(submit(p, fresh(&s, p)), "submit");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        expect("child: wait", ROWMILL_FORKED, answered(p, s.ticket, -1, &answer), "connect again in the child");
        expect("child: submit", ROWMILL_FORKED, submit(p, fresh(&s, p)), "connect again in the child");
        expect("child: poll", ROWMILL_FORKED, rowmill_poll(p->client, &answer, &got), "connect again");
        expect("child: notify_fd", ROWMILL_FORKED, rowmill_notify_fd(p->client, &fd), "connect again");
        expect("child: region freed", ROWMILL_FORKED, rowmill_region_free(p->region), "connect again");
        expect("child: schema freed", ROWMILL_FORKED, rowmill_schema_free(p->schema), "connect again");
        expect("child: close", ROWMILL_FORKED, rowmill_close(p->client), "connect again");
        place own = open_place(url);
        must(submit(&own, fresh(&s, &own)), "submit");
        expect("child: a connection of its own", ROWMILL_OK, answered(&own, s.ticket, -1, &answer), "");
        close_place(&own);
        fflush(stdout);
        _exit(failures != 0);
    }
    int status;
    waitpid(child, &status, 0);
    expect("the child's end", ROWMILL_OK, WIFEXITED(status) && WEXITSTATUS(status) == 0 ? ROWMILL_OK : ROWMILL_INTERNAL, "");
    expect("parent: its request goes on", ROWMILL_OK, answered(p, s.ticket, -1, &answer), "");
}

static void closed(const char *url) {
    place p = open_place(url);
    sound s;
    rowmill_answer answer = {.size = sizeof answer};
    int got;
    must(submit(&p, fresh(&s, &p)), "submit");
    must(rowmill_close(p.client), "close");
    expect("closed: submit", ROWMILL_CLOSED, submit(&p, &s), "connect again");
    expect("closed: wait", ROWMILL_CLOSED, answered(&p, s.ticket, -1, &answer), "connect again");
    expect("closed: poll", ROWMILL_CLOSED, rowmill_poll(p.client, &answer, &got), "connect again");
    expect("closed: close", ROWMILL_CLOSED, rowmill_close(p.client), "connect again");
    *(volatile char *)p.memory = 1; /* still mapped */
    must(rowmill_region_free(p.region), "region_free");
    must(rowmill_schema_free(p.schema), "schema_free");
    expect("closed: schema freed twice", ROWMILL_INVALID, rowmill_schema_free(p.schema), "was freed");
}

/* The dataplane is killed while a request is in flight, which a thread waits for, another is polled for. */
static void killed(const place *p, pid_t dataplane) {
    sound s[2];
    rowmill_answer answer = {.size = sizeof answer};
    int fd, got = 0;
    must(rowmill_notify_fd(p->client, &fd), "notify_fd");
    stop(dataplane);
    must(submit(p, fresh(&s[0], p)), "submit");
    fresh(&s[1], p)->target.offset = p->bytes;
    must(submit(p, &s[1]), "submit");
    waiter w = {p, s[0].ticket, ROWMILL_OK};
    pthread_t thread;
    pthread_create(&thread, NULL, wait_in_person, &w);
    do {
        usleep(1000);
    } while (answered(p, s[0].ticket, 0, &answer) == ROWMILL_TIMEOUT);
    kill(dataplane, SIGKILL);
    pthread_join(thread, NULL);
    expect("killed: the waiter", ROWMILL_OK, w.status == ROWMILL_CLOSED ? ROWMILL_OK : w.status, "");
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    expect("killed: the descriptor is ready", ROWMILL_OK, poll(&ready, 1, 10 * 1000) == 1 ? ROWMILL_OK : ROWMILL_TIMEOUT, "");
    must(rowmill_poll(p->client, &answer, &got), "poll");
    expect("killed: the answer polled for", ROWMILL_CLOSED, got ? answer.status : ROWMILL_INTERNAL, "connect again");
    expect("killed: poll", ROWMILL_CLOSED, rowmill_poll(p->client, &answer, &got), "connect again");
    expect("killed: submit", ROWMILL_CLOSED, submit(p, fresh(&s[0], p)), "connect again");
    rowmill_feature one = feature(table.name, ROWMILL_SUM);
    rowmill_schema *schema;
    expect("killed: bind", ROWMILL_CLOSED, rowmill_bind(p->client, &one, 1, 2, &schema), "connect again");
}

static int wants(const char *section, const char *wanted) {
    return wanted == NULL || strcmp(section, wanted) == 0;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: misuse URL PID [SECTION]\n");
        return 2;
    }
    const char *url = argv[1], *wanted = argc > 3 ? argv[3] : NULL;
    pid_t dataplane = (pid_t)atol(argv[2]);
    alarm(100); /* no hang */
    place a = open_place(url), b;
    close_place(&a);
    int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");

    a = open_place(url);
    b = open_place(url);
    if (wants("connecting", wanted))
        connecting(url);
    if (wants("handles", wanted))
        handles(&a);
    if (wants("schemas", wanted))
        schemas(&a);
    if (wants("regions", wanted))
        regions(&a);
    if (wants("memories", wanted))
        memories(&a);
    if (wants("expired", wanted))
        expired(&a);
    if (wants("requests", wanted))
        requests(&a, &b);
    if (wants("stopped", wanted))
        stopped(url, &a, dataplane);
    if (wants("forked", wanted))
        forked(url, &a);
    if (wants("closed", wanted))
        closed(url);
    close_place(&b);
    if (wants("killed", wanted))
        killed(&a, dataplane);
    close_place(&a);

    int more = entries("/proc/self/fd") - descriptors, running = entries("/proc/self/task") - threads;
    printf("%-4s  descriptors and threads left: %d and %d\n", more || running ? "FAIL" : "ok", more, running);
    failures += more != 0 || running != 0;
    printf("%d failed\n", failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
