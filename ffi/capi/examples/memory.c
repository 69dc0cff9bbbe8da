/* Answers in memory of one's own: memory URL
 *
 * Registers memory that malloc() and the like give, tells how answers come there, and looks the same up in memory of the library's. The
 * dataplane serves the table `items`, as README.md of ffi/capi makes it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rowmill.h>

enum { BAGS = 4 };

static void must(int status, const char *what) {
    if (status != ROWMILL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rowmill_status_name(status), rowmill_error_text());
        exit(EXIT_FAILURE);
    }
}

/* Looks four bags up, of 1 to 4 items, and waits for the answer. */
static void look_up(rowmill_client *client, rowmill_schema *schema, rowmill_region *region) {
    int64_t items[] = {17, 4, 99, 5, 17, 4, 99, 5, 17, 4}, lengths[BAGS] = {1, 2, 3, 4};
    rowmill_jagged part = {.size = sizeof part, .ids = items, .n_ids = 10, .id_bits = 64,
                           .lengths = lengths, .n_divisions = BAGS, .division_bits = 64};
    rowmill_batch batch = {.size = sizeof batch, .bags = BAGS, .parts = &part, .n_parts = 1};
    rowmill_target target = {.size = sizeof target, .region = region};
    rowmill_answer answer = {.size = sizeof answer};
    rowmill_ticket ticket;
    must(rowmill_submit(client, schema, &batch, &target, NULL, &ticket), "submit");
    must(rowmill_wait(client, ticket, -1, &answer), "wait");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: memory URL\n");
        return 2;
    }
    rowmill_client *client;
    must(rowmill_connect(argv[1], NULL, &client), "connect");

    /* The vectors are 512 bytes apart, so that there is room for something of one's own behind each of 64 floats. */
    rowmill_feature clicked = {.size = sizeof clicked, .pooling = ROWMILL_SUM, .name = "clicked", .table = "items", .stride = 512};
    rowmill_schema *schema;
    must(rowmill_bind(client, &clicked, 1, BAGS, &schema), "bind");
    rowmill_layout layout = {.size = sizeof layout};
    must(rowmill_schema_layout(schema, 0, &layout), "layout");
    size_t vector = layout.dim * layout.element_bytes;

    /* Memory that anything gives, at a multiple of 4. */
    size_t bytes = BAGS * layout.stride;
    char *own = malloc(bytes);
    if (own == NULL)
        return EXIT_FAILURE;
    memset(own, 0x5a, bytes);
    rowmill_region *region;
    must(rowmill_region_register(client, own, bytes, NULL, &region), "region_register");
    rowmill_region_info info = {.size = sizeof info};
    must(rowmill_region_describe(region, &info), "region_describe");
    printf("%" PRIu64 " bytes are registered; answers %s\n", info.bytes,
           info.way == ROWMILL_WAY_COPIED ? "are copied there" : "come there without a copy");
    look_up(client, schema, region);

    rowmill_region *shared;
    void *memory;
    must(rowmill_region_create(client, bytes, &shared, &memory), "region_create");
    look_up(client, schema, shared);
    int equal = 1, alone = 1;
    for (size_t bag = 0; bag < BAGS; bag++) {
        const char *here = own + bag * layout.stride;
        equal &= memcmp(here, (char *)memory + bag * layout.stride, vector) == 0;
        for (size_t at = vector; at < layout.stride; at++)
            alone &= here[at] == 0x5a;
    }
    printf("the vectors are%s those of memory of the library's, and what lies between is%s left alone\n", equal ? "" : " not",
           alone ? "" : " not");

    /* From here on the memory is its owner's alone. */
    must(rowmill_region_free(region), "region_free");
    free(own);
    must(rowmill_region_free(shared), "region_free");
    must(rowmill_schema_free(schema), "schema_free");
    must(rowmill_close(client), "close");
    return equal && alone ? EXIT_SUCCESS : EXIT_FAILURE;
}
