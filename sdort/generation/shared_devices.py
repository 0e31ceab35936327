"""Several devices that compute an image together: what they cannot do, and what they have no part in, in words."""

from __future__ import annotations

from sdort.console import say
from sdort.errors import UsageError
from sdort.generation.memory_need import refuse_other_device
from sdort.generation.request_plan import RequestPlan
from sdort.generation.requests.request import Request
from sdort.pipelines.folder import PipelineFolder
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import Session
from sdort.runtime.step.spread_unet import device_shares, sample_shares


def remark_on_devices(provider: Provider, options: RuntimeOptions) -> None:
    """Say where ``--devices`` gains nothing, whatever is drawn."""
    if options.devices is None:
        return
    if not options.other_devices:
        say(f"--devices {options.devices} is one GPU, as --device-id {options.device_id}: nothing is shared")
    elif not provider.on_gpu:
        count = 1 + len(options.other_devices)
        say(f"--devices on {provider.name}: {count} sessions share one processor, which makes nothing faster")


def refuse_shared(
    folder: PipelineFolder,
    plan: RequestPlan,
    images: int,
    provider: Provider,
    options: RuntimeOptions,
    held: int | None = None,
) -> None:
    """Refuse what several devices cannot do together, or have no memory for.

    Args:
        images: all images of the run.
        held: as :func:`sdort.generation.memory_need.refuse_generation` takes it.

    Raises:
        UsageError: control images steer the UNet.
        MemoryShortageError: what a further device needs and what is free there.
    """
    if options.other_devices and plan.request.control:
        raise UsageError(
            "--control steers the UNet of one GPU, and --devices has several", hint="Leave one of the two out."
        )
    for number in options.other_devices if provider.on_gpu else ():
        refuse_other_device(folder, plan.request, images, provider, number, held, plan.stages)


def refuse_patches(request: Request, provider: Provider, options: RuntimeOptions) -> None:
    """Refuse ``--patches`` that the devices do not have.

    Raises:
        UsageError: there are not as many devices, or the provider compiles graphs for itself.
    """
    if request.patches is None:
        return
    count = 1 + len(options.other_devices)
    if count % request.patches:
        raise UsageError(
            f"--patches {request.patches} is for {request.patches} GPUs, or a multiple of that, and there "
            + ("is 1" if count == 1 else f"are {count}"),
            hint=f"Name them: --devices {','.join(map(str, range(request.patches)))}",
        )
    if provider.programs:
        raise UsageError(
            f"--patches is not for {provider.name}, whose tensors pass through the host's memory",
            hint="Take rocm or cuda, or leave it out.",
        )


def remark_on_shares(unet: Session, samples: int) -> None:
    """Say which devices have no part in the steps, and where patches are more than the samples ask for.

    Args:
        samples: of each step.
    """
    patches = unet.options.patch_cut
    if patches and samples > len(sample_shares(unet, samples)):
        say(
            f"--patches {patches}: the {patches} GPUs of an image compute several of the {samples} samples in turn; "
            "fewer patches give each GPU fewer samples, and two halves of guidance are exact"
        )
    devices, busy = 1 + len(unet.others), len(device_shares(unet, samples))
    if busy < devices:
        each = "1 sample" if samples == 1 else f"{samples} samples"
        say(
            f"--devices: {busy} of {devices} GPUs compute the steps, which have {each}: an image is one sample without "
            "guidance and two with it, and --images-at-once images share a step"
        )
