module {
  func.func @main(%arg0: tensor<256x64xf32> {pcp.init = "normal(0.0199)", pcp.name = "token.weight", pcp.role = "param"}, %arg1: tensor<32x64xf32> {pcp.init = "normal(0.02)", pcp.name = "position.weight", pcp.role = "param"}, %arg2: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.0.norm1.weight", pcp.role = "param"}, %arg3: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.0.norm1.bias", pcp.role = "param"}, %arg4: tensor<192x64xf32> {pcp.init = "normal(0.0201)", pcp.name = "blocks.0.attention.qkv.weight", pcp.role = "param"}, %arg5: tensor<64x64xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.0.attention.projection.weight", pcp.role = "param"}, %arg6: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.0.norm2.weight", pcp.role = "param"}, %arg7: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.0.norm2.bias", pcp.role = "param"}, %arg8: tensor<256x64xf32> {pcp.init = "normal(0.0199)", pcp.name = "blocks.0.up.weight", pcp.role = "param"}, %arg9: tensor<256xf32> {pcp.init = "zeros", pcp.name = "blocks.0.up.bias", pcp.role = "param"}, %arg10: tensor<64x256xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.0.down.weight", pcp.role = "param"}, %arg11: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.0.down.bias", pcp.role = "param"}, %arg12: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.1.norm1.weight", pcp.role = "param"}, %arg13: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.1.norm1.bias", pcp.role = "param"}, %arg14: tensor<192x64xf32> {pcp.init = "normal(0.0201)", pcp.name = "blocks.1.attention.qkv.weight", pcp.role = "param"}, %arg15: tensor<64x64xf32> {pcp.init = "normal(0.0202)", pcp.name = "blocks.1.attention.projection.weight", pcp.role = "param"}, %arg16: tensor<64xf32> {pcp.init = "ones", pcp.name = "blocks.1.norm2.weight", pcp.role = "param"}, %arg17: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.1.norm2.bias", pcp.role = "param"}, %arg18: tensor<256x64xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.1.up.weight", pcp.role = "param"}, %arg19: tensor<256xf32> {pcp.init = "zeros", pcp.name = "blocks.1.up.bias", pcp.role = "param"}, %arg20: tensor<64x256xf32> {pcp.init = "normal(0.02)", pcp.name = "blocks.1.down.weight", pcp.role = "param"}, %arg21: tensor<64xf32> {pcp.init = "zeros", pcp.name = "blocks.1.down.bias", pcp.role = "param"}, %arg22: tensor<64xf32> {pcp.init = "ones", pcp.name = "norm.weight", pcp.role = "param"}, %arg23: tensor<64xf32> {pcp.init = "zeros", pcp.name = "norm.bias", pcp.role = "param"}, %arg24: tensor<256x64xf32> {pcp.init = "normal(0.0199)", pcp.name = "head.weight", pcp.role = "param"}, %arg25: tensor<64x32xi64> {pcp.name = "ids", pcp.role = "data"}, %arg26: tensor<64x32xi64> {pcp.name = "targets", pcp.role = "data"}) -> tensor<f32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<i64>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c_1 = stablehlo.constant dense<-100> : tensor<2048xi64>
    %0 = "stablehlo.gather"(%arg0, %arg25) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 64>}> : (tensor<256x64xf32>, tensor<64x32xi64>) -> tensor<64x32x64xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2] : (tensor<32x64xf32>) -> tensor<64x32x64xf32>
    %2 = stablehlo.add %0, %1 : tensor<64x32x64xf32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %4 = stablehlo.reshape %3 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %cst_2 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<64x32x1xf32>
    %6 = stablehlo.divide %4, %5 : tensor<64x32x1xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %8 = stablehlo.subtract %2, %7 : tensor<64x32x64xf32>
    %9 = stablehlo.multiply %8, %8 : tensor<64x32x64xf32>
    %10 = stablehlo.reduce(%9 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %11 = stablehlo.reshape %10 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %12 = stablehlo.divide %11, %5 : tensor<64x32x1xf32>
    %cst_3 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<64x32x1xf32>
    %14 = stablehlo.add %12, %13 : tensor<64x32x1xf32>
    %15 = stablehlo.rsqrt %14 : tensor<64x32x1xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %17 = stablehlo.multiply %8, %16 : tensor<64x32x64xf32>
    %18 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %19 = stablehlo.multiply %17, %18 : tensor<64x32x64xf32>
    %20 = stablehlo.broadcast_in_dim %arg3, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %21 = stablehlo.add %19, %20 : tensor<64x32x64xf32>
    %22 = stablehlo.transpose %arg4, dims = [1, 0] : (tensor<192x64xf32>) -> tensor<64x192xf32>
    %23 = stablehlo.reshape %21 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %24 = stablehlo.dot_general %23, %22, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x192xf32>) -> tensor<2048x192xf32>
    %25 = stablehlo.reshape %24 : (tensor<2048x192xf32>) -> tensor<64x32x192xf32>
    %26 = stablehlo.slice %25 [0:64, 0:32, 0:64] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %27 = stablehlo.slice %25 [0:64, 0:32, 64:128] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %28 = stablehlo.slice %25 [0:64, 0:32, 128:192] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %29 = stablehlo.reshape %26 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %30 = stablehlo.transpose %29, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %31 = stablehlo.reshape %27 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %32 = stablehlo.transpose %31, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %33 = stablehlo.reshape %28 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %34 = stablehlo.transpose %33, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %35 = stablehlo.transpose %32, dims = [0, 1, 3, 2] : (tensor<64x4x32x16xf32>) -> tensor<64x4x16x32xf32>
    %36 = stablehlo.reshape %30 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %37 = stablehlo.reshape %35 : (tensor<64x4x16x32xf32>) -> tensor<256x16x32xf32>
    %38 = stablehlo.broadcast_in_dim %37, dims = [0, 1, 2] : (tensor<256x16x32xf32>) -> tensor<256x16x32xf32>
    %39 = stablehlo.dot_general %36, %38, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x16xf32>, tensor<256x16x32xf32>) -> tensor<256x32x32xf32>
    %40 = stablehlo.reshape %39 : (tensor<256x32x32xf32>) -> tensor<64x4x32x32xf32>
    %cst_4 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<64x4x32x32xf32>
    %42 = stablehlo.divide %40, %41 : tensor<64x4x32x32xf32>
    %c_5 = stablehlo.constant dense<"0x00010101010101010101010101010101010101010101010101010101010101010000010101010101010101010101010101010101010101010101010101010101000000010101010101010101010101010101010101010101010101010101010100000000010101010101010101010101010101010101010101010101010101010000000000010101010101010101010101010101010101010101010101010101000000000000010101010101010101010101010101010101010101010101010100000000000000010101010101010101010101010101010101010101010101010000000000000000010101010101010101010101010101010101010101010101000000000000000000010101010101010101010101010101010101010101010100000000000000000000010101010101010101010101010101010101010101010000000000000000000000010101010101010101010101010101010101010101000000000000000000000000010101010101010101010101010101010101010100000000000000000000000000010101010101010101010101010101010101010000000000000000000000000000010101010101010101010101010101010101000000000000000000000000000000010101010101010101010101010101010100000000000000000000000000000000010101010101010101010101010101010000000000000000000000000000000000010101010101010101010101010101000000000000000000000000000000000000010101010101010101010101010100000000000000000000000000000000000000010101010101010101010101010000000000000000000000000000000000000000010101010101010101010101000000000000000000000000000000000000000000010101010101010101010100000000000000000000000000000000000000000000010101010101010101010000000000000000000000000000000000000000000000010101010101010101000000000000000000000000000000000000000000000000010101010101010100000000000000000000000000000000000000000000000000010101010101010000000000000000000000000000000000000000000000000000010101010101000000000000000000000000000000000000000000000000000000010101010100000000000000000000000000000000000000000000000000000000010101010000000000000000000000000000000000000000000000000000000000010101000000000000000000000000000000000000000000000000000000000000010100000000000000000000000000000000000000000000000000000000000000010000000000000000000000000000000000000000000000000000000000000000"> : tensor<1x1x32x32xi1>
    %43 = stablehlo.broadcast_in_dim %c_5, dims = [0, 1, 2, 3] : (tensor<1x1x32x32xi1>) -> tensor<64x4x32x32xi1>
    %44 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<64x4x32x32xf32>
    %45 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2, 3] : (tensor<64x4x32x32xf32>) -> tensor<64x4x32x32xf32>
    %46 = stablehlo.select %43, %44, %45 : tensor<64x4x32x32xi1>, tensor<64x4x32x32xf32>
    %47 = stablehlo.reduce(%46 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %48 = stablehlo.reshape %47 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %49 = stablehlo.broadcast_in_dim %48, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %50 = stablehlo.subtract %46, %49 : tensor<64x4x32x32xf32>
    %51 = stablehlo.exponential %50 : tensor<64x4x32x32xf32>
    %52 = stablehlo.reduce(%51 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %53 = stablehlo.reshape %52 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %54 = stablehlo.broadcast_in_dim %53, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %55 = stablehlo.divide %51, %54 : tensor<64x4x32x32xf32>
    %56 = stablehlo.reshape %55 : (tensor<64x4x32x32xf32>) -> tensor<256x32x32xf32>
    %57 = stablehlo.reshape %34 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %58 = stablehlo.broadcast_in_dim %57, dims = [0, 1, 2] : (tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %59 = stablehlo.dot_general %56, %58, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x32xf32>, tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %60 = stablehlo.reshape %59 : (tensor<256x32x16xf32>) -> tensor<64x4x32x16xf32>
    %61 = stablehlo.transpose %60, dims = [0, 2, 1, 3] : (tensor<64x4x32x16xf32>) -> tensor<64x32x4x16xf32>
    %62 = stablehlo.reshape %61 : (tensor<64x32x4x16xf32>) -> tensor<64x32x64xf32>
    %63 = stablehlo.transpose %arg5, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %64 = stablehlo.reshape %62 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %65 = stablehlo.dot_general %64, %63, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
    %66 = stablehlo.reshape %65 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %67 = stablehlo.add %2, %66 : tensor<64x32x64xf32>
    %68 = stablehlo.reduce(%67 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %69 = stablehlo.reshape %68 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %70 = stablehlo.divide %69, %5 : tensor<64x32x1xf32>
    %71 = stablehlo.broadcast_in_dim %70, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %72 = stablehlo.subtract %67, %71 : tensor<64x32x64xf32>
    %73 = stablehlo.multiply %72, %72 : tensor<64x32x64xf32>
    %74 = stablehlo.reduce(%73 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %75 = stablehlo.reshape %74 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %76 = stablehlo.divide %75, %5 : tensor<64x32x1xf32>
    %77 = stablehlo.add %76, %13 : tensor<64x32x1xf32>
    %78 = stablehlo.rsqrt %77 : tensor<64x32x1xf32>
    %79 = stablehlo.broadcast_in_dim %78, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %80 = stablehlo.multiply %72, %79 : tensor<64x32x64xf32>
    %81 = stablehlo.broadcast_in_dim %arg6, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %82 = stablehlo.multiply %80, %81 : tensor<64x32x64xf32>
    %83 = stablehlo.broadcast_in_dim %arg7, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %84 = stablehlo.add %82, %83 : tensor<64x32x64xf32>
    %85 = stablehlo.reshape %84 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %86 = stablehlo.transpose %arg8, dims = [1, 0] : (tensor<256x64xf32>) -> tensor<64x256xf32>
    %87 = stablehlo.dot_general %85, %86, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x256xf32>) -> tensor<2048x256xf32>
    %cst_6 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %88 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2048x256xf32>
    %89 = stablehlo.multiply %87, %88 : tensor<2048x256xf32>
    %90 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<256xf32>
    %91 = stablehlo.multiply %arg9, %90 : tensor<256xf32>
    %92 = stablehlo.broadcast_in_dim %91, dims = [1] : (tensor<256xf32>) -> tensor<2048x256xf32>
    %93 = stablehlo.add %89, %92 : tensor<2048x256xf32>
    %94 = stablehlo.reshape %93 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
    %95 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64x32x256xf32>
    %96 = stablehlo.compare LE, %94, %95, FLOAT : (tensor<64x32x256xf32>, tensor<64x32x256xf32>) -> tensor<64x32x256xi1>
    %97 = stablehlo.broadcast_in_dim %96, dims = [0, 1, 2] : (tensor<64x32x256xi1>) -> tensor<64x32x256xi1>
    %98 = stablehlo.broadcast_in_dim %94, dims = [0, 1, 2] : (tensor<64x32x256xf32>) -> tensor<64x32x256xf32>
    %99 = stablehlo.select %97, %95, %98 : tensor<64x32x256xi1>, tensor<64x32x256xf32>
    %100 = stablehlo.reshape %99 : (tensor<64x32x256xf32>) -> tensor<2048x256xf32>
    %101 = stablehlo.transpose %arg10, dims = [1, 0] : (tensor<64x256xf32>) -> tensor<256x64xf32>
    %102 = stablehlo.dot_general %100, %101, contracting_dims = [1] x [0] : (tensor<2048x256xf32>, tensor<256x64xf32>) -> tensor<2048x64xf32>
    %103 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2048x64xf32>
    %104 = stablehlo.multiply %102, %103 : tensor<2048x64xf32>
    %105 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %106 = stablehlo.multiply %arg11, %105 : tensor<64xf32>
    %107 = stablehlo.broadcast_in_dim %106, dims = [1] : (tensor<64xf32>) -> tensor<2048x64xf32>
    %108 = stablehlo.add %104, %107 : tensor<2048x64xf32>
    %109 = stablehlo.reshape %108 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %110 = stablehlo.add %67, %109 : tensor<64x32x64xf32>
    %111 = stablehlo.reduce(%110 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %112 = stablehlo.reshape %111 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %113 = stablehlo.divide %112, %5 : tensor<64x32x1xf32>
    %114 = stablehlo.broadcast_in_dim %113, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %115 = stablehlo.subtract %110, %114 : tensor<64x32x64xf32>
    %116 = stablehlo.multiply %115, %115 : tensor<64x32x64xf32>
    %117 = stablehlo.reduce(%116 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %118 = stablehlo.reshape %117 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %119 = stablehlo.divide %118, %5 : tensor<64x32x1xf32>
    %120 = stablehlo.add %119, %13 : tensor<64x32x1xf32>
    %121 = stablehlo.rsqrt %120 : tensor<64x32x1xf32>
    %122 = stablehlo.broadcast_in_dim %121, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %123 = stablehlo.multiply %115, %122 : tensor<64x32x64xf32>
    %124 = stablehlo.broadcast_in_dim %arg12, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %125 = stablehlo.multiply %123, %124 : tensor<64x32x64xf32>
    %126 = stablehlo.broadcast_in_dim %arg13, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %127 = stablehlo.add %125, %126 : tensor<64x32x64xf32>
    %128 = stablehlo.transpose %arg14, dims = [1, 0] : (tensor<192x64xf32>) -> tensor<64x192xf32>
    %129 = stablehlo.reshape %127 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %130 = stablehlo.dot_general %129, %128, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x192xf32>) -> tensor<2048x192xf32>
    %131 = stablehlo.reshape %130 : (tensor<2048x192xf32>) -> tensor<64x32x192xf32>
    %132 = stablehlo.slice %131 [0:64, 0:32, 0:64] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %133 = stablehlo.slice %131 [0:64, 0:32, 64:128] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %134 = stablehlo.slice %131 [0:64, 0:32, 128:192] : (tensor<64x32x192xf32>) -> tensor<64x32x64xf32>
    %135 = stablehlo.reshape %132 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %136 = stablehlo.transpose %135, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %137 = stablehlo.reshape %133 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %138 = stablehlo.transpose %137, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %139 = stablehlo.reshape %134 : (tensor<64x32x64xf32>) -> tensor<64x32x4x16xf32>
    %140 = stablehlo.transpose %139, dims = [0, 2, 1, 3] : (tensor<64x32x4x16xf32>) -> tensor<64x4x32x16xf32>
    %141 = stablehlo.transpose %138, dims = [0, 1, 3, 2] : (tensor<64x4x32x16xf32>) -> tensor<64x4x16x32xf32>
    %142 = stablehlo.reshape %136 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %143 = stablehlo.reshape %141 : (tensor<64x4x16x32xf32>) -> tensor<256x16x32xf32>
    %144 = stablehlo.broadcast_in_dim %143, dims = [0, 1, 2] : (tensor<256x16x32xf32>) -> tensor<256x16x32xf32>
    %145 = stablehlo.dot_general %142, %144, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x16xf32>, tensor<256x16x32xf32>) -> tensor<256x32x32xf32>
    %146 = stablehlo.reshape %145 : (tensor<256x32x32xf32>) -> tensor<64x4x32x32xf32>
    %147 = stablehlo.divide %146, %41 : tensor<64x4x32x32xf32>
    %148 = stablehlo.broadcast_in_dim %147, dims = [0, 1, 2, 3] : (tensor<64x4x32x32xf32>) -> tensor<64x4x32x32xf32>
    %149 = stablehlo.select %43, %44, %148 : tensor<64x4x32x32xi1>, tensor<64x4x32x32xf32>
    %150 = stablehlo.reduce(%149 init: %cst_0) applies stablehlo.maximum across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %151 = stablehlo.reshape %150 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %152 = stablehlo.broadcast_in_dim %151, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %153 = stablehlo.subtract %149, %152 : tensor<64x4x32x32xf32>
    %154 = stablehlo.exponential %153 : tensor<64x4x32x32xf32>
    %155 = stablehlo.reduce(%154 init: %cst) applies stablehlo.add across dimensions = [3] : (tensor<64x4x32x32xf32>, tensor<f32>) -> tensor<64x4x32xf32>
    %156 = stablehlo.reshape %155 : (tensor<64x4x32xf32>) -> tensor<64x4x32x1xf32>
    %157 = stablehlo.broadcast_in_dim %156, dims = [0, 1, 2, 3] : (tensor<64x4x32x1xf32>) -> tensor<64x4x32x32xf32>
    %158 = stablehlo.divide %154, %157 : tensor<64x4x32x32xf32>
    %159 = stablehlo.reshape %158 : (tensor<64x4x32x32xf32>) -> tensor<256x32x32xf32>
    %160 = stablehlo.reshape %140 : (tensor<64x4x32x16xf32>) -> tensor<256x32x16xf32>
    %161 = stablehlo.broadcast_in_dim %160, dims = [0, 1, 2] : (tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %162 = stablehlo.dot_general %159, %161, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<256x32x32xf32>, tensor<256x32x16xf32>) -> tensor<256x32x16xf32>
    %163 = stablehlo.reshape %162 : (tensor<256x32x16xf32>) -> tensor<64x4x32x16xf32>
    %164 = stablehlo.transpose %163, dims = [0, 2, 1, 3] : (tensor<64x4x32x16xf32>) -> tensor<64x32x4x16xf32>
    %165 = stablehlo.reshape %164 : (tensor<64x32x4x16xf32>) -> tensor<64x32x64xf32>
    %166 = stablehlo.transpose %arg15, dims = [1, 0] : (tensor<64x64xf32>) -> tensor<64x64xf32>
    %167 = stablehlo.reshape %165 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %168 = stablehlo.dot_general %167, %166, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x64xf32>) -> tensor<2048x64xf32>
    %169 = stablehlo.reshape %168 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %170 = stablehlo.add %110, %169 : tensor<64x32x64xf32>
    %171 = stablehlo.reduce(%170 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %172 = stablehlo.reshape %171 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %173 = stablehlo.divide %172, %5 : tensor<64x32x1xf32>
    %174 = stablehlo.broadcast_in_dim %173, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %175 = stablehlo.subtract %170, %174 : tensor<64x32x64xf32>
    %176 = stablehlo.multiply %175, %175 : tensor<64x32x64xf32>
    %177 = stablehlo.reduce(%176 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %178 = stablehlo.reshape %177 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %179 = stablehlo.divide %178, %5 : tensor<64x32x1xf32>
    %180 = stablehlo.add %179, %13 : tensor<64x32x1xf32>
    %181 = stablehlo.rsqrt %180 : tensor<64x32x1xf32>
    %182 = stablehlo.broadcast_in_dim %181, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %183 = stablehlo.multiply %175, %182 : tensor<64x32x64xf32>
    %184 = stablehlo.broadcast_in_dim %arg16, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %185 = stablehlo.multiply %183, %184 : tensor<64x32x64xf32>
    %186 = stablehlo.broadcast_in_dim %arg17, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %187 = stablehlo.add %185, %186 : tensor<64x32x64xf32>
    %188 = stablehlo.reshape %187 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %189 = stablehlo.transpose %arg18, dims = [1, 0] : (tensor<256x64xf32>) -> tensor<64x256xf32>
    %190 = stablehlo.dot_general %188, %189, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x256xf32>) -> tensor<2048x256xf32>
    %191 = stablehlo.multiply %190, %88 : tensor<2048x256xf32>
    %192 = stablehlo.multiply %arg19, %90 : tensor<256xf32>
    %193 = stablehlo.broadcast_in_dim %192, dims = [1] : (tensor<256xf32>) -> tensor<2048x256xf32>
    %194 = stablehlo.add %191, %193 : tensor<2048x256xf32>
    %195 = stablehlo.reshape %194 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
    %196 = stablehlo.compare LE, %195, %95, FLOAT : (tensor<64x32x256xf32>, tensor<64x32x256xf32>) -> tensor<64x32x256xi1>
    %197 = stablehlo.broadcast_in_dim %196, dims = [0, 1, 2] : (tensor<64x32x256xi1>) -> tensor<64x32x256xi1>
    %198 = stablehlo.broadcast_in_dim %195, dims = [0, 1, 2] : (tensor<64x32x256xf32>) -> tensor<64x32x256xf32>
    %199 = stablehlo.select %197, %95, %198 : tensor<64x32x256xi1>, tensor<64x32x256xf32>
    %200 = stablehlo.reshape %199 : (tensor<64x32x256xf32>) -> tensor<2048x256xf32>
    %201 = stablehlo.transpose %arg20, dims = [1, 0] : (tensor<64x256xf32>) -> tensor<256x64xf32>
    %202 = stablehlo.dot_general %200, %201, contracting_dims = [1] x [0] : (tensor<2048x256xf32>, tensor<256x64xf32>) -> tensor<2048x64xf32>
    %203 = stablehlo.multiply %202, %103 : tensor<2048x64xf32>
    %204 = stablehlo.multiply %arg21, %105 : tensor<64xf32>
    %205 = stablehlo.broadcast_in_dim %204, dims = [1] : (tensor<64xf32>) -> tensor<2048x64xf32>
    %206 = stablehlo.add %203, %205 : tensor<2048x64xf32>
    %207 = stablehlo.reshape %206 : (tensor<2048x64xf32>) -> tensor<64x32x64xf32>
    %208 = stablehlo.add %170, %207 : tensor<64x32x64xf32>
    %209 = stablehlo.reduce(%208 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %210 = stablehlo.reshape %209 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %211 = stablehlo.divide %210, %5 : tensor<64x32x1xf32>
    %212 = stablehlo.broadcast_in_dim %211, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %213 = stablehlo.subtract %208, %212 : tensor<64x32x64xf32>
    %214 = stablehlo.multiply %213, %213 : tensor<64x32x64xf32>
    %215 = stablehlo.reduce(%214 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<64x32x64xf32>, tensor<f32>) -> tensor<64x32xf32>
    %216 = stablehlo.reshape %215 : (tensor<64x32xf32>) -> tensor<64x32x1xf32>
    %217 = stablehlo.divide %216, %5 : tensor<64x32x1xf32>
    %218 = stablehlo.add %217, %13 : tensor<64x32x1xf32>
    %219 = stablehlo.rsqrt %218 : tensor<64x32x1xf32>
    %220 = stablehlo.broadcast_in_dim %219, dims = [0, 1, 2] : (tensor<64x32x1xf32>) -> tensor<64x32x64xf32>
    %221 = stablehlo.multiply %213, %220 : tensor<64x32x64xf32>
    %222 = stablehlo.broadcast_in_dim %arg22, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %223 = stablehlo.multiply %221, %222 : tensor<64x32x64xf32>
    %224 = stablehlo.broadcast_in_dim %arg23, dims = [2] : (tensor<64xf32>) -> tensor<64x32x64xf32>
    %225 = stablehlo.add %223, %224 : tensor<64x32x64xf32>
    %226 = stablehlo.transpose %arg24, dims = [1, 0] : (tensor<256x64xf32>) -> tensor<64x256xf32>
    %227 = stablehlo.reshape %225 : (tensor<64x32x64xf32>) -> tensor<2048x64xf32>
    %228 = stablehlo.dot_general %227, %226, contracting_dims = [1] x [0] : (tensor<2048x64xf32>, tensor<64x256xf32>) -> tensor<2048x256xf32>
    %229 = stablehlo.reshape %228 : (tensor<2048x256xf32>) -> tensor<64x32x256xf32>
    %230 = stablehlo.reshape %229 : (tensor<64x32x256xf32>) -> tensor<2048x256xf32>
    %231 = stablehlo.reshape %arg26 : (tensor<64x32xi64>) -> tensor<2048xi64>
    %232 = stablehlo.reduce(%230 init: %cst_0) applies stablehlo.maximum across dimensions = [1] : (tensor<2048x256xf32>, tensor<f32>) -> tensor<2048xf32>
    %233 = stablehlo.reshape %232 : (tensor<2048xf32>) -> tensor<2048x1xf32>
    %234 = stablehlo.broadcast_in_dim %233, dims = [0, 1] : (tensor<2048x1xf32>) -> tensor<2048x256xf32>
    %235 = stablehlo.subtract %230, %234 : tensor<2048x256xf32>
    %236 = stablehlo.exponential %235 : tensor<2048x256xf32>
    %237 = stablehlo.reduce(%236 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<2048x256xf32>, tensor<f32>) -> tensor<2048xf32>
    %238 = stablehlo.reshape %237 : (tensor<2048xf32>) -> tensor<2048x1xf32>
    %239 = stablehlo.log %238 : tensor<2048x1xf32>
    %240 = stablehlo.broadcast_in_dim %239, dims = [0, 1] : (tensor<2048x1xf32>) -> tensor<2048x256xf32>
    %241 = stablehlo.subtract %235, %240 : tensor<2048x256xf32>
    %242 = stablehlo.compare NE, %231, %c_1, SIGNED : (tensor<2048xi64>, tensor<2048xi64>) -> tensor<2048xi1>
    %243 = stablehlo.broadcast_in_dim %242, dims = [0] : (tensor<2048xi1>) -> tensor<2048xi1>
    %244 = stablehlo.broadcast_in_dim %231, dims = [0] : (tensor<2048xi64>) -> tensor<2048xi64>
    %245 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i64>) -> tensor<2048xi64>
    %246 = stablehlo.select %243, %244, %245 : tensor<2048xi1>, tensor<2048xi64>
    %247 = stablehlo.reshape %246 : (tensor<2048xi64>) -> tensor<2048x1xi64>
    %248 = stablehlo.iota dim = 0 : tensor<2048x1x1xi64>
    %249 = stablehlo.reshape %247 : (tensor<2048x1xi64>) -> tensor<2048x1x1xi64>
    %250 = stablehlo.concatenate %248, %249, dim = 2 : (tensor<2048x1x1xi64>, tensor<2048x1x1xi64>) -> tensor<2048x1x2xi64>
    %251 = "stablehlo.gather"(%241, %250) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<2048x256xf32>, tensor<2048x1x2xi64>) -> tensor<2048x1xf32>
    %252 = stablehlo.reshape %251 : (tensor<2048x1xf32>) -> tensor<2048xf32>
    %253 = stablehlo.negate %252 : tensor<2048xf32>
    %254 = stablehlo.broadcast_in_dim %253, dims = [0] : (tensor<2048xf32>) -> tensor<2048xf32>
    %255 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2048xf32>
    %256 = stablehlo.select %243, %254, %255 : tensor<2048xi1>, tensor<2048xf32>
    %257 = stablehlo.convert %242 : (tensor<2048xi1>) -> tensor<2048xi64>
    %258 = stablehlo.reduce(%257 init: %c) applies stablehlo.add across dimensions = [0] : (tensor<2048xi64>, tensor<i64>) -> tensor<i64>
    %259 = stablehlo.convert %258 : (tensor<i64>) -> tensor<f32>
    %260 = stablehlo.reduce(%256 init: %cst) applies stablehlo.add across dimensions = [0] : (tensor<2048xf32>, tensor<f32>) -> tensor<f32>
    %261 = stablehlo.divide %260, %259 : tensor<f32>
    return %261 : tensor<f32>
  }
}
