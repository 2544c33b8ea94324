// RUN: pcp-opt %s --split-input-file --verify-diagnostics --pcp-schedule='kind=1f1b'

func.func @nameless(%o: !pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0> {
  %y = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    // expected-error@+1 {{a scheduled task says its stage, microbatch, dir}}
    %b = "pcp.task"(%a) ({
    ^bb0(%x: tensor<4xf32>):
      "pcp.yield"(%x) : (tensor<4xf32>) -> ()
    }) {device = @d0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    "pcp.yield"(%b) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "custom", microbatches = 1} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return %y : !pcp.on<tensor<4xf32>, @d0>
}

// -----

// The forward of a later microbatch feeds the backward of an earlier one.
func.func @cycle(%o: !pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0> {
  %y = "pcp.schedule"(%o) ({
  ^bb0(%a: !pcp.on<tensor<4xf32>, @d0>):
    // expected-error@+1 {{stage cycle: the schedule's order and its values contradict}}
    %b = "pcp.task"(%a) ({
    ^bb0(%x: tensor<4xf32>):
      "pcp.yield"(%x) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "fwd", microbatch = 1, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    %c = "pcp.task"(%b) ({
    ^bb0(%x: tensor<4xf32>):
      "pcp.yield"(%x) : (tensor<4xf32>) -> ()
    }) {device = @d0, dir = "bwd", microbatch = 0, stage = 0} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
    "pcp.yield"(%c) : (!pcp.on<tensor<4xf32>, @d0>) -> ()
  }) {kind = "custom", microbatches = 2} : (!pcp.on<tensor<4xf32>, @d0>) -> !pcp.on<tensor<4xf32>, @d0>
  return %y : !pcp.on<tensor<4xf32>, @d0>
}
