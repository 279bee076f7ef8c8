"""Lets frameworks that want an accelerator for FSDP run it on a CPU. On PYTHONPATH in these tests, and nowhere else.

Python imports this before any script. Each guard is lifted right after its module has been imported, so nothing is imported
for a script that would not have been.
"""

import importlib.util
import sys


def accelerate_state(module):
    """Without an accelerator it would fall back to DDP, or to separate processes, without a word."""
    module.PartialState._prepare_backend = lambda *_, **__: ("gloo", module.DistributedType.MULTI_GPU)


def fabric_connector(module):
    module._Connector._check_strategy_and_fallback = lambda _: None


def lightning_connector(module):
    module._AcceleratorConnector._check_strategy_and_fallback = lambda _: None


def torch_fsdp(module):
    """Lightning passes no device where there is one only; FSDP1 wants to be told that it is the CPU."""
    original = module.FullyShardedDataParallel.__init__

    def init(self, *args, device_id=None, **kwargs):
        import torch

        original(self, *args, device_id=torch.device("cpu") if device_id is None else device_id, **kwargs)

    module.FullyShardedDataParallel.__init__ = init


def torchtitan_utils(module):
    """Here it asks which accelerator there is, and what it has; torch.cpu lacks the questions on memory."""
    import types

    import torch

    cpu = dict(
        vars(torch.cpu),
        get_device_name=lambda _: "cpu",
        get_device_properties=lambda _: types.SimpleNamespace(total_memory=2**30),
        memory_stats=lambda _: {},
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        current_device=lambda: 0,
    )
    module.device_type, module.device_module = "cpu", types.SimpleNamespace(**cpu)


def torchtitan_parallelize(module):
    """It has the sum of gradients taken by an operation that gloo lacks; FSDP2 has a switch for that."""
    original = module.disable_fsdp_gradient_division

    def disable_fsdp_gradient_division(model):
        original(model)
        for part in model.modules():
            if hasattr(part, "set_force_sum_reduction_for_comms"):
                part.set_force_sum_reduction_for_comms(True)

    module.disable_fsdp_gradient_division = disable_fsdp_gradient_division


GUARDS = {
    "accelerate.state": accelerate_state,
    "lightning.fabric.connector": fabric_connector,
    "lightning.pytorch.trainer.connectors.accelerator_connector": lightning_connector,
    "torch.distributed.fsdp.fully_sharded_data_parallel": torch_fsdp,
    "torchtitan.models.llama3.infra.parallelize": torchtitan_parallelize,
    "torchtitan.tools.utils": torchtitan_utils,
}


class Lifting:
    """Finds a guarded module as the others would, and lifts its guard when it has run."""

    def find_spec(self, name, path=None, target=None):
        lift = GUARDS.pop(name, None)
        if lift is None:
            return None
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            lift(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Lifting())
