"""Makes tensorboard_events.tfevents, the golden case of src/tensorboard.rs, with TensorBoard's own writer: `python tensorboard_events.py` (needs tensorboard).

`python tensorboard_events.py DIR` instead prints what TensorBoard reads from the event files of DIR.
"""
import pathlib, sys

if len(sys.argv) > 1:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
    events.Reload()
    for tag in events.Tags()["scalars"]:
        scalars = events.Scalars(tag)
        print(tag, len(scalars), "first", scalars[0].step, scalars[0].value, "last", scalars[-1].step, scalars[-1].value)
        assert [s.step for s in scalars] == sorted({s.step for s in scalars}), "a step twice or out of order"
else:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
    value = lambda tag, x: Summary.Value(tag=tag, simple_value=x)
    scalars = [value("train/loss", 1.25), value("val/perplexity", float("inf")), value("lr/pg0", 2e-4)]
    with open(pathlib.Path(__file__).with_suffix(".tfevents"), "wb") as file:
        writer = RecordWriter(file)
        for event in [
            Event(file_version="brain.Event:2"),
            Event(step=301, session_log=SessionLog(status=SessionLog.START)),
            Event(step=300, summary=Summary(value=scalars)),
            Event(step=70000, summary=Summary()),
        ]:
            event.wall_time = 1700000000.5
            writer.write(event.SerializeToString())
