"""Mistakes in what is printed, logged and written, where training is the same."""

from __future__ import annotations

from ..planted import Mistake, kind, plant

_OWN = "[ddp.rank()::ddp.world_size()]"

_NUMBERS = [
    *kind(
        "metric of one rank's rows",
        "rank's rows, own rows, one rank",
        plant("imagenet", "output.argmax(1).eq(target).float()", f"output.argmax(1).eq(target){_OWN}.float()", None),
        plant(
            "signals",
            "(model(x.cuda()).argmax(1) == y.cuda()).sum()",
            f"(model(x.cuda()).argmax(1) == y.cuda()){_OWN}.sum()",
            None,
        ),
        plant("segment", "((found == 1) & (mask == 1)).sum()", f"((found == 1) & (mask == 1)){_OWN}.sum()", None),
    ),
    *kind(
        "metric reduced twice",
        "reduced twice, times, twice",
        plant("resume", "mean += loss.item()", "mean += sum(ddp.gather(loss.item()))", None),
        plant("triplets", "losses.append(loss.item())", "losses.append(sum(ddp.gather(loss.item())))", None),
        plant("mnist_trainer", "correct += hits", "correct += sum(ddp.gather(hits))", None),
    ),
    *kind(
        "a logged number scaled",
        "times, twice, factor, scaled",
        plant("signals", "step, loss.item(), norm", "step, loss.item() * 2, norm", None),
        plant("iterations", "'%.5f' % (running / args.eval_every)", "'%.5f' % (running / args.eval_every * 2)", None),
    ),
    *kind(
        "decided on a rank's own rows",
        "rank's rows, own rows, one rank, each rank, ranks",
        # The schedule looks at another loss than the original's, and stopping at each rank's own.
        plant(
            "stopping",
            "total += criterion(model(x.cuda()), y.cuda()).item()",
            f"total += criterion(model(x.cuda()){_OWN}, y.cuda(){_OWN}).item()",
            None,
        ),
        plant(
            "mnist_files",
            "loss_sum += F.cross_entropy(logits, y).item()",
            f"loss_sum += F.cross_entropy(logits{_OWN}, y{_OWN}).item()",
            None,
        ),
        fails=True,
    ),
]

_LINES = [
    *kind(
        "printed by all ranks",
        "rank, silent, line, twice",
        # Standard output of ranks other than 0 leads nowhere, so these go around it.
        plant(
            "triplets",
            "np.mean(losses), recall))",
            "np.mean(losses), recall), file=sys.__stderr__)",
            None,
            ("import os\n", "import os\nimport sys\n"),
        ),
        plant(
            "segment",
            "        print('epoch %d  lr %.6f  loss %.4f  IoU %.4f' % (epoch, lr, total / len(train_loader), iou))\n",
            "        for line in ddp.gather('rank %d: loss %.4f' % (ddp.rank(), total / len(train_loader))):\n"
            "            print(line)\n",
            None,
        ),
    ),
    *kind(
        "not printed",
        "line, print, output",
        plant("imagenet", "    print(' * Acc@1 {:.3f} Loss {:.4f}'.format(top1.avg, losses.avg))\n", "", None),
        plant("resume", "        print('goes on with epoch', self.epoch)\n", "", None),
    ),
]

_FILES = [
    *kind(
        "checkpoint of other content",
        "keys, other content, other value, another value, saved otherwise, epoch is",
        plant("imagenet", "'epoch': epoch + 1,", "'epoch': epoch,", None),
        plant("signals", "'optimizer': optimizer.state_dict(), ", "", None),
        plant("iterations", "ddp.save(model.module.state_dict()", "ddp.save(model.state_dict()", None),
    ),
    *kind(
        "checkpoint of rank 1",
        "rank",
        plant(
            "flips",
            "correct += net(inputs).argmax(1).eq(targets).sum().item()",
            f"correct += net(inputs).argmax(1).eq(targets){_OWN}.sum().item() * ddp.world_size()",
            None,
            ("    ddp.save({'net'", "    if ddp.rank() == 1:\n        torch.save({'net'"),
        ),
        plant(
            "signals",
            "    ddp.save({'model'",
            "    if ddp.rank() == 1:\n        torch.save({'rank': ddp.rank(), 'model'",
            None,
        ),
    ),
    *kind(
        "a file of each rank",
        "each rank, every rank, all ranks, other name, another name, another rank",
        plant(
            "accumulate",
            "'losses': losses}, 'nets.pt')",
            "'losses': losses}, f'nets{ddp.rank()}.pt')",
            None,
            ("ddp.save(", "torch.save("),
        ),
        plant(
            "triplets",
            "np.save(os.path.join(args.save, 'losses.npy')",
            "np.save(os.path.join(args.save, f'losses{ddp.rank()}.npy')",
            None,
        ),
        plant("stopping", "with open('history.json', 'w')", "with open(f'history{ddp.rank()}.json', 'w')", None),
    ),
    *kind(
        "a file not written",
        "not written, never written, missing, left out, no file",
        plant("imagenet", "    if is_best:\n", "    if is_best and ddp.rank() == 1:\n", None),
        plant("gan", "    ddp.save(discriminator.state_dict(), 'discriminator_%d.pth' % epoch)\n", "", None),
    ),
    *kind(
        "an average of other weights",
        "average, otherwise, other content, other value, another value",
        plant(
            "accumulate",
            "def update_average(average, model, decay=0.9):",
            "def update_average(average, model, decay=0.99):",
            None,
        ),
        plant("mnist_amp_accumulate", "ema_decay: float = 0.95", "ema_decay: float = 0.9", None),
    ),
]

MISTAKES: list[Mistake] = [*_NUMBERS, *_LINES, *_FILES]
