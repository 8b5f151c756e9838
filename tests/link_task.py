"""Run by test_links.py: one task of a TensorFlow cluster whose other tasks it knows by addresses of its own.

``python link_task.py TASK CLUSTER``: a worker obeys lines: ``add`` (1 to a counter on the ps), ``push`` (a million
floats to the ps), ``read`` (the counter and the sum of what was pushed, over a million), and answers each with a line.
"""

import json
import sys

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
FLOATS = 1_000_000


def main():
    job, _, index = sys.argv[1].partition(":")
    tf1.disable_eager_execution()
    filters = ["/job:ps", f"/job:{job}/task:{index}"]
    config = tf1.ConfigProto(device_filters=filters if job == "worker" else [])
    spec = tf1.train.ClusterSpec(json.loads(sys.argv[2]))
    server = tf1.train.Server(spec, job_name=job, task_index=int(index), config=config)
    if job == "ps":
        server.join()
    with tf.device("/job:ps/task:0/device:CPU:0"):
        counter, pushed = (
            tf1.get_variable(name, shape, initializer=tf1.zeros_initializer(), use_resource=True)
            for name, shape in (("counter", []), ("pushed", [FLOATS]))
        )
        add = counter.assign_add(1.0, read_value=False)
        read = [counter.read_value(), tf.reduce_mean(pushed.read_value())]
    with tf.device(f"/job:worker/task:{index}/device:CPU:0"):
        gradient = tf.numpy_function(lambda: np.ones(FLOATS, np.float32), [], tf.float32)
    gradient.set_shape([FLOATS])
    with tf.device("/job:ps/task:0/device:CPU:0"):
        push = pushed.assign_add(gradient, read_value=False)
    with tf1.Session(server.target, config=config) as session:
        for line in sys.stdin:
            order = line.strip()
            if order == "initialise":
                session.run(tf1.global_variables_initializer())
                answer = order
            else:
                answer = session.run({"add": add, "push": push, "read": read}[order])
                answer = " ".join(f"{number:g}" for number in answer) if order == "read" else order
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
