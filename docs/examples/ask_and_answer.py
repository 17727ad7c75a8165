"""Requests and their answers, between two tasks.

Task 1 sends requests, and task 2 answers them. Any task may send requests, many requests may be in
flight, and answers may arrive in any order. A plain gRPC call does the same between two processes
that know each other's addresses. Here, a task number is sufficient.

Run it in the root of a clone: python docs/examples/ask_and_answer.py
"""

import threading

import tuplewire

ASKS, ANSWERS = 1, 2
NUMBERS = [3, 5, 8]


def answer(worker: tuplewire.local) -> None:
    """Square the numbers in the requests."""
    with worker.client() as client, client.recv([ANSWERS]) as inbox:
        for message in inbox.messages(count=len(NUMBERS)):
            client.answer(message, b"%d" % int(message.payload) ** 2)


if __name__ == "__main__":
    with tuplewire.local(tasks="1,2") as worker, worker.client() as client:
        answering = threading.Thread(target=answer, args=[worker])
        answering.start()
        with client.asker(reply_to=ASKS) as asker:
            squares = asker.ask_all((ANSWERS, b"%d" % number) for number in NUMBERS)
        for number, square in zip(NUMBERS, squares, strict=True):
            print(f"{number} squared is {int(square.payload)}")
        answering.join()
