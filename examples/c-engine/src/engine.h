/* The engine's interface, which the plugin wraps. */
#ifndef ENGINE_H
#define ENGINE_H

#include <stddef.h>
#include <stdint.h>

/* Weights. They do not change, so any thread may read them. */
typedef struct engine engine;
/* State of one sequence. */
typedef struct sequence sequence;

/* Reads the sizes from a weights file: 0, or -1 with a message in `error`. */
int engine_sizes(const char *path, uint32_t *vocabulary, uint32_t *width, char *error, size_t error_bytes);
/* Loads a weights file and returns its sizes; NULL with a message in `error`. */
engine *engine_open(const char *path, uint32_t *vocabulary, uint32_t *width, char *error, size_t error_bytes);
void engine_close(engine *);

/* A sequence without tokens, or a copy of another one; NULL if out of memory. */
sequence *sequence_new(const engine *, const sequence *copied);
void sequence_free(sequence *);
/* The number of tokens read. */
uint32_t sequence_seen(const sequence *);
/* Reads `count` tokens below the vocabulary's size, and writes a row of logits for each of the last `rows`. */
void sequence_read(const engine *, sequence *, const uint32_t *tokens, uint32_t count, uint32_t rows, float *logits);

/* A sequence as bytes, and back: `sequence_load` is 0, or -1 for bytes that are not a sequence of this engine. */
size_t sequence_bytes(const engine *);
void sequence_save(const engine *, const sequence *, unsigned char *bytes);
int sequence_load(const engine *, sequence *, const unsigned char *bytes, size_t count);

#endif
