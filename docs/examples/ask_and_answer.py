"""A request and its answer, between two tasks.

Task 1 sends requests, and task 2 answers them. A request and its answer have the same key. A header
of the request names the task that waits for the answer. So any task may send requests, many
requests may be in flight, and answers may arrive in any order. A plain gRPC call does the same
between two processes that know each other's addresses. Here, a task number is sufficient.

Run it: python ask_and_answer.py
"""

import threading

import tuplewire

ASKS, ANSWERS = 1, 2
STOP = b"stop"


def answer(worker: tuplewire.local) -> None:
    """Square the numbers that arrive, until a stop message arrives."""
    with worker.client() as client, client.recv([ANSWERS], timeout=30) as batches:
        for message in batches.messages():
            if message.key == STOP:
                return
            reply_to = int(dict(message.headers)["reply-to"])
            client.send(reply_to, b"%d" % int(message.payload) ** 2, key=message.key)


def ask(worker: tuplewire.local, numbers: list[int]) -> dict[int, int]:
    """Send all requests, then wait for their answers."""
    reply_to = [("reply-to", b"%d" % ASKS)]
    with worker.client() as client, client.recv([ASKS], timeout=30) as batches:
        for number in numbers:
            client.send(ANSWERS, b"%d" % number, key=b"request-%d" % number, headers=reply_to)
        waiting = {b"request-%d" % number: number for number in numbers}
        answers = {}
        for message in batches.messages(count=len(numbers)):
            answers[waiting.pop(message.key)] = int(message.payload)
        client.send(ANSWERS, b"", key=STOP)
        return answers


if __name__ == "__main__":
    with tuplewire.local(tasks="1,2") as worker:
        answering = threading.Thread(target=answer, args=[worker])
        answering.start()
        for number, square in ask(worker, [3, 5, 8]).items():
            print(f"{number} squared is {square}")
        answering.join()
