/* Threads that share a connection, each with a part of the region of its own: threads URL [LOOKUPS]
 *
 * Then one waits without end, and another closes the client. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rowmill.h>

enum { THREADS = 4 };

static rowmill_client *client;
static rowmill_schema *schema;
static rowmill_region *region;
static char *memory;
static uint64_t bytes;
static long lookups;

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

/* Looks one row up; the vector is at `offset` of the region afterwards. */
static int lookup(uint32_t id, uint64_t offset) {
    uint32_t length = 1;
    rowmill_jagged part = {.size = sizeof part, .ids = &id, .n_ids = 1, .id_bits = 32,
                           .lengths = &length, .n_divisions = 1, .division_bits = 32};
    rowmill_batch batch = {.size = sizeof batch, .bags = 1, .parts = &part, .n_parts = 1};
    rowmill_target target = {.size = sizeof target, .region = region, .offset = offset};
    rowmill_ticket ticket;
    int status;
    while ((status = rowmill_submit(client, schema, &batch, &target, NULL, &ticket)) == ROWMILL_AGAIN)
        ; /* others have all slots */
    if (status != ROWMILL_OK)
        return status;
    rowmill_answer answer = {.size = sizeof answer};
    return rowmill_wait(client, ticket, -1, &answer);
}

static void *work(void *number) {
    uint64_t offset = *(int *)number * bytes;
    char first[4096];
    for (long i = 0; i < lookups; i++) {
        must(lookup(7, offset), "lookup");
        if (i == 0)
            memcpy(first, memory + offset, bytes);
        else if (memcmp(first, memory + offset, bytes) != 0) {
            fprintf(stderr, "thread %d got another row\n", *(int *)number);
            exit(EXIT_FAILURE);
        }
    }
    return NULL;
}

static void *work_until_closed(void *number) {
    int status;
    while ((status = lookup(7, *(int *)number * bytes)) == ROWMILL_OK)
        ;
    if (status != ROWMILL_CLOSED)
        must(status, "lookup of a client that is closed");
    return NULL;
}

static void run(void *(*what)(void *), int closes) {
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, what, &numbers[i]);
    }
    if (closes)
        must(rowmill_close(client), "close");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: threads URL [LOOKUPS]\n");
        return 2;
    }
    lookups = argc > 2 ? atol(argv[2]) : 1000;
    rowmill_options options = {.size = sizeof options, .name = "threads", .waiting = ROWMILL_WAIT_SLEEP};
    must(rowmill_connect(argv[1], &options, &client), "connect");
    rowmill_feature feature = {.size = sizeof feature, .pooling = ROWMILL_SUM, .name = "clicked", .table = "items"};
    must(rowmill_bind(client, &feature, 1, 1, &schema), "bind");
    must(rowmill_answer_bytes(schema, 1, &bytes), "answer_bytes");
    void *start;
    must(rowmill_region_create(client, THREADS * bytes, &region, &start), "region_create");
    memory = start;

    run(work, 0);
    run(work_until_closed, 1);
    printf("%d threads made %ld lookups each, and were told that the client was closed\n", THREADS, lookups);
    must(rowmill_region_free(region), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
    return EXIT_SUCCESS;
}
