"""Documents -> fixed batches of packed token trees, made by several processes ahead of the training.

A batch is a function of (split, seed, index, stage) alone: how many processes make it does not matter.
"""

import multiprocessing
import os

import numpy

from documents import OTHER, OWN, extraction, ranking
from vocabulary import Vocabulary, generator

# Loss classes of a token's successor.
NONE, TEXT, VALUE, DECISION = 0, 1, 2, 3


def stage(index, warm_up):
    """Length of the longest record in batch `index`: short ones first, all from 2 * warm_up on."""
    return 300 if index < warm_up else 600 if index < 2 * warm_up else 1200


class Packer:
    def __init__(self, tokenizer, split, seed, rows, tokens, end_token=0):
        self.tokenizer, self.split, self.seed = tokenizer, split, seed
        self.rows, self.tokens, self.end_token = rows, tokens, end_token
        self.vocabulary = Vocabulary(split)

    def encode_document(self, document):
        """(prefix, [(own, answer with the end token)]) in tokens, prefix and own with their marks:
        (tokens, [(token, label)])"""
        texts = [document.prefix]
        for row in document.rows:
            texts += [row.own, " " + row.answer]
        encodings = self.tokenizer.encode_batch(texts)

        def marked(encoding, marks):
            # A value in a record is looked for at its first token; one in a row is judged after its last.
            places = ((encoding.char_to_token(first if label in (OWN, OTHER) else last), label) for first, last, label in marks)
            return encoding.ids, list(places)

        rows = []
        for number, row in enumerate(document.rows):
            own, answer = encodings[1 + 2 * number : 3 + 2 * number]
            rows.append((marked(own, row.marks), answer.ids + [self.end_token]))
        return marked(encodings[0], document.marks), rows

    def documents(self, name, longest):
        """Both tasks, extraction with slightly more tokens than ranking."""
        rng = generator(self.split, f"{self.seed}/training", name)
        while True:
            if rng.random() < 0.5:
                low = 150
                yield extraction(self.vocabulary, rng, int(low * (longest / low) ** (rng.random() ** 0.7)))
            else:
                yield ranking(self.vocabulary, rng, rng.randint(4, 20))

    def batch(self, index, longest=1200):
        """dict of [rows, tokens] int16: tokens, targets, classes, marks, positions and the three places of
        llama.tree_mask; and `about`, a list of (row, first, last, task, prefix length) for each answer."""
        names = ("tokens", "targets", "classes", "marks", "positions", "starts", "prefix_ends", "row_starts")
        out = {name: numpy.zeros((self.rows, self.tokens), dtype=numpy.int16) for name in names}
        out["starts"][:] = out["row_starts"][:] = numpy.arange(self.tokens)  # unused places see themselves
        used = [0] * self.rows
        about = []
        misses = 0
        for document in self.documents(index, longest):
            prefix, rows = self.encode_document(document)
            size = len(prefix[0]) + sum(len(own[0]) + len(answer) for own, answer in rows)
            fits = [row for row in range(self.rows) if used[row] + size <= self.tokens]
            if not fits:
                misses += 1
                if misses == 8:
                    break
                continue
            row = max(fits, key=lambda r: used[r])  # the fullest that still has room
            about += self._place(out, row, used[row], document.task, prefix, rows)
            used[row] += size
        out["about"] = about
        return out

    def _place(self, out, row, start, task, prefix, rows):
        def write(at, ids, classes, first_position, row_start):
            end = at + len(ids)
            out["tokens"][row, at:end] = ids
            out["targets"][row, at : end - 1] = ids[1:]
            out["classes"][row, at : end - 1] = classes
            out["positions"][row, at:end] = numpy.arange(first_position, first_position + len(ids))
            out["starts"][row, at:end] = start
            out["prefix_ends"][row, at:end] = start + len(prefix)
            out["row_starts"][row, at:end] = row_start
            return end

        def mark(at, marks):
            for token, label in marks:
                out["marks"][row, at + token] = label

        prefix, marks = prefix
        mark(start, marks)
        at = write(start, prefix, TEXT, 0, start)
        answers = []
        for (own, marks), answer in rows:
            mark(at, marks)
            classes = numpy.full(len(own) + len(answer) - 1, NONE if task == "extraction" else TEXT)
            classes[len(own) - 1 :] = VALUE if task == "extraction" else DECISION
            first = at + len(own) - 1  # the place that predicts the answer's first token
            at = write(at, own + answer, classes, len(prefix), at)
            answers.append((row, first, at - 1, task, len(prefix)))
        return answers


def _work(queue, path, arguments, indices, warm_up):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    packer = Packer(Tokenizer.from_file(path), *arguments)
    for index in indices:
        queue.put(packer.batch(index, stage(index, warm_up)))


def batches(tokenizer_path, split, seed, rows, tokens, count, warm_up, processes):
    """Yields batches 0 to count - 1 in order."""
    context = multiprocessing.get_context("spawn")
    queues = [context.Queue(maxsize=4) for _ in range(processes)]
    workers = []
    for number, queue in enumerate(queues):
        task = (queue, tokenizer_path, (split, seed, rows, tokens), range(number, count, processes), warm_up)
        workers.append(context.Process(target=_work, args=task, daemon=True))
        workers[-1].start()
    try:
        for index in range(count):
            yield queues[index % processes].get(timeout=300)
    finally:
        for worker in workers:
            worker.terminate()
