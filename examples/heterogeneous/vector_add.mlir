// Vector additions on two CPUs, and a reduction of what they give on another device.
//
//   pcp-compile vector_add.mlir --cluster cluster.json -o vector_add.pcp
//   pcp run vector_add.pcp --inputs random:0 --out sums.npz
//
// A task runs on its device, compiled for the target that the cluster file names; each
// device is a process, and a transfer is a message over TCP.

#each = affine_map<(i) -> (i)>
#one = affine_map<(i) -> ()>

!vector0 = !pcp.on<tensor<20xi32>, @cpu0>
!vector1 = !pcp.on<tensor<20xi32>, @cpu1>
!vector = !pcp.on<tensor<20xi32>, @accelerator>
!scalar = !pcp.on<tensor<i32>, @accelerator>

func.func @main(
    %a: tensor<20xi32> {pcp.name = "a"}, %b: tensor<20xi32> {pcp.name = "b"})
    -> (tensor<20xi32> {pcp.name = "c"}, tensor<i32> {pcp.name = "total"}) {
  // Both CPUs are given the vectors.
  %a0, %b0, %a1, %b1 = builtin.unrealized_conversion_cast %a, %b, %a, %b
    : tensor<20xi32>, tensor<20xi32>, tensor<20xi32>, tensor<20xi32>
    to !vector0, !vector0, !vector1, !vector1

  %results = "pcp.schedule"() ({
    // c = a + b, in linalg and arith.
    %c0 = "pcp.task"(%a0, %b0) ({
    ^bb0(%x: tensor<20xi32>, %y: tensor<20xi32>):
      %out = tensor.empty() : tensor<20xi32>
      %sum = linalg.generic
          {indexing_maps = [#each, #each, #each], iterator_types = ["parallel"]}
          ins(%x, %y : tensor<20xi32>, tensor<20xi32>) outs(%out : tensor<20xi32>) {
      ^bb0(%i: i32, %j: i32, %k: i32):
        %0 = arith.addi %i, %j : i32
        linalg.yield %0 : i32
      } -> tensor<20xi32>
      "pcp.yield"(%sum) : (tensor<20xi32>) -> ()
    }) {device = @cpu0} : (!vector0, !vector0) -> !vector0

    // d = a + 2 b, in StableHLO.
    %d1 = "pcp.task"(%a1, %b1) ({
    ^bb0(%x: tensor<20xi32>, %y: tensor<20xi32>):
      %0 = stablehlo.add %y, %y : tensor<20xi32>
      %1 = stablehlo.add %x, %0 : tensor<20xi32>
      "pcp.yield"(%1) : (tensor<20xi32>) -> ()
    }) {device = @cpu1} : (!vector1, !vector1) -> !vector1

    %c = "pcp.transfer"(%c0) : (!vector0) -> !vector
    %d = "pcp.transfer"(%d1) : (!vector1) -> !vector

    // The sum of c[i] * d[i].
    %total = "pcp.task"(%c, %d) ({
    ^bb0(%x: tensor<20xi32>, %y: tensor<20xi32>):
      %zero = arith.constant dense<0> : tensor<i32>
      %dot = linalg.generic
          {indexing_maps = [#each, #each, #one], iterator_types = ["reduction"]}
          ins(%x, %y : tensor<20xi32>, tensor<20xi32>) outs(%zero : tensor<i32>) {
      ^bb0(%i: i32, %j: i32, %so_far: i32):
        %0 = arith.muli %i, %j : i32
        %1 = arith.addi %so_far, %0 : i32
        linalg.yield %1 : i32
      } -> tensor<i32>
      "pcp.yield"(%dot) : (tensor<i32>) -> ()
    }) {device = @accelerator} : (!vector, !vector) -> !scalar

    %both = builtin.unrealized_conversion_cast %c0, %total
      : !vector0, !scalar to tuple<!vector0, !scalar>
    "pcp.yield"(%both) : (tuple<!vector0, !scalar>) -> ()
  }) {kind = "custom", microbatches = 1} : () -> tuple<!vector0, !scalar>

  %c, %total = builtin.unrealized_conversion_cast %results
    : tuple<!vector0, !scalar> to tensor<20xi32>, tensor<i32>
  return %c, %total : tensor<20xi32>, tensor<i32>
}
